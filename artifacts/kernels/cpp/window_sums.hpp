// What was added up for the documents of a window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "vectors.hpp"

namespace kernels {

constexpr uint32_t WINDOW = 1 << 12;  // documents

// Takes the sums of a window, none of which is below 0: those above a bound, with their places, ascending; gives how
// many, and leaves all of them 0. Reading and clearing them takes as long as adding up some hundred postings. All ways
// give the same.
using TakeAbove = size_t (*)(float *sums, float bound, uint16_t *places, float *scores);

constexpr size_t TAKEN = 32;  // are looked at together

inline size_t take_above(float *sums, float bound, uint16_t *places, float *scores) {
    uint32_t least, value;  // floats from 0 on are ordered like their bits
    std::memcpy(&least, &bound, sizeof least);
    size_t count = 0;
    for (size_t first = 0; first < WINDOW; first += TAKEN) {
        int32_t above = 0;
        for (size_t i = first; i < first + TAKEN; ++i) {
            std::memcpy(&value, sums + i, sizeof value);
            above |= static_cast<int32_t>(least - value);
        }
        if (above >= 0) continue;
        for (size_t i = first; i < first + TAKEN; ++i) {
            places[count] = static_cast<uint16_t>(i);
            scores[count] = sums[i];
            count += sums[i] > bound;
        }
    }
    std::memset(sums, 0, WINDOW * sizeof *sums);
    return count;
}

#ifdef HAS_X86_VECTORS

// Reads and clears in one go, for which the compiler finds no good code by itself.
__attribute__((target("avx2"))) inline size_t take_above_avx2(float *sums, float bound, uint16_t *places, float *scores) {
    const __m256 least = _mm256_set1_ps(bound), zero = _mm256_setzero_ps();
    size_t count = 0;
    for (size_t first = 0; first < WINDOW; first += TAKEN) {
        float *const at = sums + first;
        __m256 parts[4];
        for (size_t i = 0; i < 4; ++i) parts[i] = _mm256_loadu_ps(at + 8 * i);
        const __m256 largest = _mm256_max_ps(_mm256_max_ps(parts[0], parts[1]), _mm256_max_ps(parts[2], parts[3]));
        if (_mm256_movemask_ps(_mm256_cmp_ps(largest, least, _CMP_GT_OQ))) {
            uint32_t above = 0;
            for (size_t i = 0; i < 4; ++i)
                above |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(parts[i], least, _CMP_GT_OQ))) << 8 * i;
            for (; above; above &= above - 1) {
                const auto place = static_cast<uint16_t>(first + static_cast<size_t>(__builtin_ctz(above)));
                places[count] = place;
                scores[count++] = sums[place];
            }
        }
        for (size_t i = 0; i < 4; ++i) _mm256_storeu_ps(at + 8 * i, zero);
    }
    return count;
}

#endif

inline TakeAbove best_take_above() {
#ifdef HAS_X86_VECTORS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) return take_above_avx2;
#endif
    return take_above;
}

}  // namespace kernels
