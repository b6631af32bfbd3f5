// Products of a query with many rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "arrays.hpp"

namespace kernels {

// Half of LANES, of which the compiler makes one register, or two small ones.
typedef float Floats __attribute__((vector_size(LANES / 2 * sizeof(float)), aligned(sizeof(float))));
static_assert(alignof(Floats) == sizeof(float), "rows may begin anywhere");

inline float sum_of(const Floats &low, const Floats &high) {
    float sums[LANES / 2];
    for (size_t lane = 0; lane < LANES / 2; ++lane) sums[lane] = low[lane] + high[lane];
    for (size_t half = LANES / 4; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    return sums[0];
}

// Inner products of rows (n, size) with a vector (size,).
ALSO_FOR_AVX2 inline void products_of(const float *rows, size_t count, size_t size, const float *vector, float *products) {
    constexpr size_t TOGETHER = 4, HALF = LANES / 2;  // rows, so that one's sums don't wait for each other
    for (size_t first = 0; first < count; first += TOGETHER) {
        Floats low[TOGETHER] = {}, high[TOGETHER] = {};
        const float *row[TOGETHER];
        for (size_t k = 0; k < TOGETHER; ++k) row[k] = rows + std::min(first + k, count - 1) * size;
        size_t i = 0;
        for (; i + LANES <= size; i += LANES) {
            const auto left = *reinterpret_cast<const Floats *>(vector + i);
            const auto right = *reinterpret_cast<const Floats *>(vector + i + HALF);
#pragma GCC unroll 4
            for (size_t k = 0; k < TOGETHER; ++k) {
                low[k] += *reinterpret_cast<const Floats *>(row[k] + i) * left;
                high[k] += *reinterpret_cast<const Floats *>(row[k] + i + HALF) * right;
            }
        }
        for (size_t k = 0; k < TOGETHER && first + k < count; ++k) {
            products[first + k] = sum_of(low[k], high[k]);
            for (size_t rest = i; rest < size; ++rest) products[first + k] += row[k][rest] * vector[rest];
        }
    }
}

// Products of rows of bytes (n, width) with a vector (width,), small enough for their sums.
ALSO_FOR_AVX2 inline void whole_products(const int8_t *row, size_t count, size_t width, const int16_t *vector,
                                         int32_t *products) {
    for (size_t i = 0; i < count; ++i, row += width) {
        int32_t product = 0;
        for (size_t j = 0; j < width; ++j) product += static_cast<int16_t>(row[j]) * vector[j];
        products[i] = product;
    }
}

// The sum of the squared products of directions (r, w) with a vector (w,).
ALSO_FOR_AVX2 inline float squares_along(const int8_t *direction, const int16_t *vector, size_t count, size_t width) {
    float sum = 0;
    for (size_t i = 0; i < count; ++i, direction += width) {
        int32_t product = 0;
        for (size_t j = 0; j < width; ++j) product += static_cast<int16_t>(direction[j]) * vector[j];
        sum += static_cast<float>(product) * static_cast<float>(product);
    }
    return sum;
}

}  // namespace kernels
