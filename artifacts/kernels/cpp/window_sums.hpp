// The sums of a window's documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "vectors.hpp"

namespace kernels {

constexpr uint32_t WINDOW = 1 << 12;  // documents

// Takes the sums above a bound, which is not below 0, out of a window, with their places, ascending; returns how many
// there are, and leaves all of the window 0. Every implementation gives the same.
using TakeAbove = size_t (*)(double *sums, double bound, uint16_t *places, double *taken);

constexpr size_t TAKEN = 16;  // are looked at together

inline size_t take_above(double *sums, double bound, uint16_t *places, double *taken) {
    size_t count = 0;
    for (size_t first = 0; first < WINDOW; first += TAKEN) {
        int above = 0;
        for (size_t i = first; i < first + TAKEN; ++i) above |= sums[i] > bound;
        if (!above) continue;
        for (size_t i = first; i < first + TAKEN; ++i) {
            places[count] = static_cast<uint16_t>(i);
            taken[count] = sums[i];
            count += sums[i] > bound;
        }
    }
    std::memset(sums, 0, WINDOW * sizeof *sums);
    return count;
}

#ifdef HAS_X86_VECTORS
// Reads and clears in one go, for which the compiler finds no good code by itself.
__attribute__((target("avx2"))) inline size_t take_above_avx2(double *sums, double bound, uint16_t *places,
                                                              double *taken) {
    const __m256d least = _mm256_set1_pd(bound), zero = _mm256_setzero_pd();
    size_t count = 0;
    for (size_t first = 0; first < WINDOW; first += TAKEN) {
        double *const at = sums + first;
        __m256d parts[4];
        for (size_t i = 0; i < 4; ++i) parts[i] = _mm256_loadu_pd(at + 4 * i);
        const __m256d largest = _mm256_max_pd(_mm256_max_pd(parts[0], parts[1]), _mm256_max_pd(parts[2], parts[3]));
        if (_mm256_movemask_pd(_mm256_cmp_pd(largest, least, _CMP_GT_OQ))) {
            uint32_t above = 0;
            for (size_t i = 0; i < 4; ++i)
                above |= static_cast<uint32_t>(_mm256_movemask_pd(_mm256_cmp_pd(parts[i], least, _CMP_GT_OQ))) << 4 * i;
            for (; above; above &= above - 1) {
                const auto place = static_cast<uint16_t>(first + static_cast<size_t>(__builtin_ctz(above)));
                places[count] = place;
                taken[count++] = sums[place];
            }
        }
        for (size_t i = 0; i < 4; ++i) _mm256_storeu_pd(at + 4 * i, zero);
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
