// A weighted query, as all that searches impacts takes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "arrays.hpp"

namespace kernels {

// The different terms, ascending, each with the sum of its weights; those that weigh nothing are left out.
//
// Weights are cut to multiples of a power of two, so that sums in double of their products with impacts are exact, hence
// the same in any order: t products of a weight below 2^e with an impact below 2^16 add up to less than 2^(e + 16 + b),
// where t <= 2^b, and a double has 53 bits. A weight that is at least 2^(b - 13) of the largest one stays as it is.
inline py::tuple weighted_terms(const Array<int32_t> &terms, const Array<float> &weights) {
    require(terms.size() == weights.size(), "every term needs a weight");
    std::vector<std::pair<int32_t, float>> query;
    for (py::ssize_t i = 0; i < terms.size(); ++i) query.emplace_back(terms.data()[i], weights.data()[i]);
    std::stable_sort(query.begin(), query.end(), [](auto one, auto other) { return one.first < other.first; });
    std::vector<int32_t> ids;
    std::vector<float> sums;
    for (const auto &[id, weight] : query) {
        if (!ids.empty() && ids.back() == id) {
            sums.back() += weight;
        } else {
            ids.push_back(id);
            sums.push_back(weight);
        }
    }
    float largest = 0;
    size_t count = 0;
    for (float sum : sums) {
        largest = std::max(largest, std::fabs(sum));
        count += sum != 0;
    }
    int exponent = 0, bits = 0;
    std::frexp(largest, &exponent);
    while (size_t{1} << bits < count) ++bits;
    const int unit = exponent + 16 + bits - 53;
    size_t kept = 0;
    for (size_t i = 0; i < sums.size(); ++i) {
        const double units = std::trunc(std::ldexp(static_cast<double>(sums[i]), -unit));
        ids[kept] = ids[i];
        sums[kept] = static_cast<float>(std::ldexp(units, unit));
        kept += sums[kept] != 0;
    }
    return py::make_tuple(array_of(ids.data(), kept), array_of(sums.data(), kept));
}

}  // namespace kernels
