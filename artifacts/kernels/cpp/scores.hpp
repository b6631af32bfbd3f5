// Simple questions about numbers, and the best of documents with scores.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "arrays.hpp"

namespace kernels {

// The sum of absolute values; it is not finite if one of the numbers isn't.
inline double magnitude(const Array<float> &numbers) {
    double sum = 0;
    for (py::ssize_t i = 0; i < numbers.size(); ++i) sum += std::fabs(static_cast<double>(numbers.data()[i]));
    return sum;
}

template <typename T> py::tuple extremes(const Array<T> &numbers) {
    require(numbers.size() > 0, "there are no numbers");
    const auto [least, largest] = std::minmax_element(numbers.data(), numbers.data() + numbers.size());
    return py::make_tuple(*least, *largest);
}

inline py::tuple best_first(const Array<int64_t> &ordinals, const Array<float> &scores, size_t count) {
    require(ordinals.size() == scores.size(), "every document needs a score");
    std::vector<std::pair<float, int64_t>> ranking(static_cast<size_t>(ordinals.size()));  // negative scores, ordinals
    for (size_t i = 0; i < ranking.size(); ++i) {
        const float score = scores.data()[i];
        require(!std::isnan(score), "document ", ordinals.data()[i], " has a score that is no number");
        ranking[i] = {-score, ordinals.data()[i]};
    }
    const auto last = ranking.begin() + static_cast<ptrdiff_t>(std::min(count, ranking.size()));
    std::nth_element(ranking.begin(), last, ranking.end());
    ranking.erase(last, ranking.end());
    std::sort(ranking.begin(), ranking.end());
    Array<int64_t> best(static_cast<py::ssize_t>(ranking.size()));
    Array<float> their(static_cast<py::ssize_t>(ranking.size()));
    for (size_t i = 0; i < ranking.size(); ++i) {
        their.mutable_data()[i] = -ranking[i].first;
        best.mutable_data()[i] = ranking[i].second;
    }
    return py::make_tuple(best, their);
}

}  // namespace kernels
