// Product codes of 4 bits in blocks of 32 documents, as Faiss' IndexIVFPQFastScan lays them out.
//
// A block holds 32 bytes for every pair of codes of a document: 16 for the first code, 16 for the second. Byte j has the
// codes of two documents, ORDER[j] in its lower half and ORDER[j] + 16 in its upper half.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "vectors.hpp"

namespace kernels {

constexpr size_t BLOCK = 32;  // documents, and bytes of a pair of codes
constexpr std::array<uint8_t, 16> ORDER = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};

// Adds up what the tables (2 * pairs, 16) have for the codes of a block's documents, into 32 sums. Gives a bit for each
// document whose sum is at least `least`; without any, the sums are not written. A block that is needed later is asked
// for `ahead`. All ways give the same.
using BlockSums = uint32_t (*)(const uint8_t *codes, const uint8_t *tables, size_t pairs, const uint8_t *ahead,
                               uint16_t least, uint16_t *sums);

inline uint32_t block_sums(const uint8_t *codes, const uint8_t *tables, size_t pairs, const uint8_t *ahead,
                           uint16_t least, uint16_t *sums) {
    for (size_t i = 0; i < BLOCK; ++i) sums[i] = 0;
    for (size_t pair = 0; pair < pairs; ++pair, codes += BLOCK, tables += BLOCK) {
        __builtin_prefetch(ahead + pair * BLOCK, 0, 0);
        for (size_t j = 0; j < BLOCK; ++j) {
            const uint8_t *table = tables + j / 16 * 16;
            const size_t document = ORDER[j % 16];
            sums[document] = static_cast<uint16_t>(sums[document] + table[codes[j] & 15]);
            sums[document + 16] = static_cast<uint16_t>(sums[document + 16] + table[codes[j] >> 4]);
        }
    }
    uint32_t found = 0;
    for (size_t i = 0; i < BLOCK; ++i) found |= static_cast<uint32_t>(sums[i] >= least) << i;
    return found;
}

#ifdef HAS_X86_VECTORS

// Of sums of bytes at even places, each with 256 times its neighbour's, and of the latter by themselves.
__attribute__((target("avx2"))) inline uint32_t finish_block(__m256i low, __m256i low_odd, __m256i high, __m256i high_odd,
                                                             uint16_t least, uint16_t *sums) {
    low = _mm256_sub_epi16(low, _mm256_slli_epi16(low_odd, 8));
    high = _mm256_sub_epi16(high, _mm256_slli_epi16(high_odd, 8));
    // The halves of a register have the two codes of a pair.
    const __m256i first = _mm256_add_epi16(_mm256_permute2x128_si256(low, low_odd, 0x20),
                                           _mm256_permute2x128_si256(low, low_odd, 0x31));
    const __m256i second = _mm256_add_epi16(_mm256_permute2x128_si256(high, high_odd, 0x20),
                                            _mm256_permute2x128_si256(high, high_odd, 0x31));
    const __m256i limit = _mm256_set1_epi16(static_cast<int16_t>(least));
    const __m256i enough = _mm256_packs_epi16(_mm256_cmpeq_epi16(_mm256_max_epu16(first, limit), first),
                                              _mm256_cmpeq_epi16(_mm256_max_epu16(second, limit), second));
    const auto found = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_permute4x64_epi64(enough, 0xD8)));
    if (found) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(sums), first);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(sums + 16), second);
    }
    return found;
}

__attribute__((target("avx2"))) inline uint32_t block_sums_avx2(const uint8_t *codes, const uint8_t *tables, size_t pairs,
                                                                const uint8_t *ahead, uint16_t least, uint16_t *sums) {
    const __m256i half = _mm256_set1_epi8(15);
    __m256i low = _mm256_setzero_si256(), low_odd = low, high = low, high_odd = low;
    for (size_t pair = 0; pair < pairs; ++pair) {
        __builtin_prefetch(ahead + pair * BLOCK, 0, 0);
        const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(codes + pair * BLOCK));
        const __m256i table = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(tables + pair * BLOCK));
        const __m256i lower = _mm256_shuffle_epi8(table, _mm256_and_si256(code, half));
        const __m256i upper = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(code, 4), half));
        low = _mm256_add_epi16(low, lower);
        low_odd = _mm256_add_epi16(low_odd, _mm256_srli_epi16(lower, 8));
        high = _mm256_add_epi16(high, upper);
        high_odd = _mm256_add_epi16(high_odd, _mm256_srli_epi16(upper, 8));
    }
    return finish_block(low, low_odd, high, high_odd, least, sums);
}

__attribute__((target("avx2,avx512f,avx512bw"))) inline __m256i folded(__m512i sums) {
    return _mm256_add_epi16(_mm512_castsi512_si256(sums), _mm512_maskz_extracti64x4_epi64(0xF, sums, 1));
}

__attribute__((target("avx2,avx512f,avx512bw"))) inline uint32_t block_sums_avx512(const uint8_t *codes,
                                                                                   const uint8_t *tables, size_t pairs,
                                                                                   const uint8_t *ahead, uint16_t least,
                                                                                   uint16_t *sums) {
    const __m512i half = _mm512_set1_epi8(15);
    __m512i low = _mm512_setzero_si512(), low_odd = low, high = low, high_odd = low;
    const auto add = [&](__m512i code, __m512i table) __attribute__((target("avx2,avx512f,avx512bw"), always_inline)) {
        const __m512i lower = _mm512_shuffle_epi8(table, _mm512_and_si512(code, half));
        const __m512i upper = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(code, 4), half));
        low = _mm512_add_epi16(low, lower);
        low_odd = _mm512_add_epi16(low_odd, _mm512_srli_epi16(lower, 8));
        high = _mm512_add_epi16(high, upper);
        high_odd = _mm512_add_epi16(high_odd, _mm512_srli_epi16(upper, 8));
    };
    size_t pair = 0;
    for (; pair + 2 <= pairs; pair += 2) {
        __builtin_prefetch(ahead + pair * BLOCK, 0, 0);
        add(_mm512_loadu_si512(codes + pair * BLOCK), _mm512_loadu_si512(tables + pair * BLOCK));
    }
    if (pair < pairs)
        add(_mm512_maskz_loadu_epi8(0xFFFFFFFF, codes + pair * BLOCK),
            _mm512_maskz_loadu_epi8(0xFFFFFFFF, tables + pair * BLOCK));
    return finish_block(folded(low), folded(low_odd), folded(high), folded(high_odd), least, sums);
}

#endif

#ifdef HAS_ARM_VECTORS

// A bit for each of 16 sums that is at least `limit`.
inline uint32_t enough_neon(uint16x8_t first, uint16x8_t second, uint16x8_t limit) {
    constexpr uint8_t BITS[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x8_t bits = vld1_u8(BITS);
    const uint8x8_t lower = vand_u8(vmovn_u16(vcgeq_u16(first, limit)), bits);
    const uint8x8_t upper = vand_u8(vmovn_u16(vcgeq_u16(second, limit)), bits);
    return vaddv_u8(lower) | static_cast<uint32_t>(vaddv_u8(upper)) << 8;
}

inline uint32_t block_sums_neon(const uint8_t *codes, const uint8_t *tables, size_t pairs, const uint8_t *ahead,
                                uint16_t least, uint16_t *sums) {
    const uint8x16_t half = vdupq_n_u8(15);
    // Of lower and upper halves of bytes; the first 8 bytes of 16 and the last.
    uint16x8_t low = vdupq_n_u16(0), low_last = low, high = low, high_last = low;
    for (size_t pair = 0; pair < pairs; ++pair) {
        __builtin_prefetch(ahead + pair * BLOCK, 0, 0);
        for (size_t at = pair * BLOCK; at < (pair + 1) * BLOCK; at += 16) {
            const uint8x16_t code = vld1q_u8(codes + at), table = vld1q_u8(tables + at);
            const uint8x16_t lower = vqtbl1q_u8(table, vandq_u8(code, half));
            const uint8x16_t upper = vqtbl1q_u8(table, vshrq_n_u8(code, 4));
            low = vaddw_u8(low, vget_low_u8(lower));
            low_last = vaddw_high_u8(low_last, lower);
            high = vaddw_u8(high, vget_low_u8(upper));
            high_last = vaddw_high_u8(high_last, upper);
        }
    }
    // Even places have documents 0 to 7 of 16, odd ones 8 to 15.
    const uint16x8_t parts[4] = {vuzp1q_u16(low, low_last), vuzp2q_u16(low, low_last), vuzp1q_u16(high, high_last),
                                 vuzp2q_u16(high, high_last)};
    const uint16x8_t limit = vdupq_n_u16(least);
    const uint32_t found = enough_neon(parts[0], parts[1], limit) | enough_neon(parts[2], parts[3], limit) << 16;
    for (size_t part = 0; found && part < 4; ++part) vst1q_u16(sums + part * 8, parts[part]);
    return found;
}

#endif

// The fastest that this processor has.
inline BlockSums best_block_sums() {
#ifdef HAS_X86_VECTORS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bw")) return block_sums_avx512;
    if (__builtin_cpu_supports("avx2")) return block_sums_avx2;
#endif
#ifdef HAS_ARM_VECTORS
    return block_sums_neon;  // every such processor has it
#else
    return block_sums;
#endif
}

}  // namespace kernels
