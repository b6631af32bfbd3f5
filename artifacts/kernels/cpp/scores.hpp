// Scores of given documents, and the best of them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "arrays.hpp"

namespace kernels {

// The sum of the numbers without their signs, which is no finite number if one of them is none.
inline double magnitude(const Array<float> &numbers) {
    double sum = 0;
    for (py::ssize_t i = 0; i < numbers.size(); ++i) sum += std::fabs(static_cast<double>(numbers.data()[i]));
    return sum;
}

// The least and the largest of numbers, of which there is one at least.
template <typename T> py::tuple extremes(const Array<T> &numbers) {
    require(numbers.size() > 0, "there are no numbers");
    const auto [least, largest] = std::minmax_element(numbers.data(), numbers.data() + numbers.size());
    return py::make_tuple(*least, *largest);
}

// Documents in Faiss' 8-bit codes: value = low + step * (code + 1/2). What all documents of a query have in common is
// added up once: q·value = q·(low + step/2) + (q step)·code.
struct ByteQuery {
    ByteQuery(const float *low, const float *step, const float *query, size_t size) : weights(size) {
        std::array<float, LANES> sums{};
        for (size_t i = 0; i < size; ++i) {
            weights[i] = query[i] * step[i];
            sums[i % LANES] += query[i] * (low[i] + step[i] * 0.5f);
        }
        for (float sum : sums) common += sum;
    }

    std::vector<float> weights;
    float common = 0;
};

ALSO_FOR_AVX2 inline float code_score(const uint8_t *codes, const float *weights, size_t size) {
    float sums[LANES] = {};
    size_t i = 0;
    for (; i + LANES <= size; i += LANES)
        for (size_t lane = 0; lane < LANES; ++lane) sums[lane] += weights[i + lane] * static_cast<float>(codes[i + lane]);
    for (size_t lane = 0; i < size; ++i, ++lane) sums[lane] += weights[i] * static_cast<float>(codes[i]);
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    return sums[0];
}

// Documents in a byte a number, (N, D), as Faiss' scalar quantiser has them.
class ByteCodes {
  public:
    ByteCodes(Array<uint8_t> codes, Array<float> low, Array<float> step)
        : codes_(std::move(codes)), low_(std::move(low)), step_(std::move(step)) {
        require(codes_.ndim() == 2, "codes have shape (N, D)");
        require(low_.size() == codes_.shape(1) && step_.size() == codes_.shape(1), "all vectors have the codes' dimension");
    }

    int64_t count() const { return codes_.shape(0); }

    size_t size() const { return static_cast<size_t>(codes_.shape(1)); }

    bool has(int64_t document) const { return document >= 0 && document < count(); }

    // Inner products of a query with documents that there are. The next ones' codes are read ahead.
    void score(const float *query, const int64_t *documents, size_t count, float *scores) const {
        constexpr size_t AHEAD = 16, LINE = 64;
        const uint8_t *first = codes_.data();
        const size_t size = this->size();
        const ByteQuery asked(low_.data(), step_.data(), query, size);
        for (size_t i = 0; i < count; ++i) {
            if (i + AHEAD < count) {
                const uint8_t *next = first + static_cast<size_t>(documents[i + AHEAD]) * size;
                for (size_t at = 0; at < size; at += LINE) __builtin_prefetch(next + at);
                __builtin_prefetch(next + size - 1);  // codes may begin anywhere in a line, and so end in one more
            }
            scores[i] = asked.common +
                        code_score(first + static_cast<size_t>(documents[i]) * size, asked.weights.data(), size);
        }
    }

    Array<float> scores(const Array<float> &query, const Array<int64_t> &documents) const {
        require(static_cast<size_t>(query.size()) == size(), "the query has the codes' dimension");
        const auto count = static_cast<size_t>(documents.size());
        for (size_t i = 0; i < count; ++i)
            require(has(documents.data()[i]), "document ", documents.data()[i], " is outside 0..", this->count() - 1);
        Array<float> found(documents.size());
        float *score_of = found.mutable_data();
        constexpr size_t MANY = 2000;
        // Few are scored in less time than it takes to get the interpreter's lock back from a busy thread.
        std::optional<py::gil_scoped_release> other_threads;
        if (count > MANY) other_threads.emplace();
        score(query.data(), documents.data(), count, score_of);
        other_threads.reset();
        return found;
    }

  private:
    Array<uint8_t> codes_;
    Array<float> low_, step_;
};

// The best of a ranking in no order, by score, ties by ordinal. Scores stand in it with their signs turned.
using Ranking = std::vector<std::pair<float, int64_t>>;

inline void keep_best(Ranking &ranking, size_t count) {
    const auto last = ranking.begin() + static_cast<ptrdiff_t>(std::min(count, ranking.size()));
    std::nth_element(ranking.begin(), last, ranking.end());
    ranking.erase(last, ranking.end());
    std::sort(ranking.begin(), ranking.end());
}

inline py::tuple ordinals_and_scores(const Ranking &ranking) {
    const auto size = static_cast<py::ssize_t>(ranking.size());
    Array<int64_t> best(size);
    Array<float> their(size);
    for (py::ssize_t i = 0; i < size; ++i) {
        their.mutable_data()[i] = -ranking[static_cast<size_t>(i)].first;
        best.mutable_data()[i] = ranking[static_cast<size_t>(i)].second;
    }
    return py::make_tuple(best, their);
}

inline py::tuple best_first(const Array<int64_t> &ordinals, const Array<float> &scores, size_t count) {
    require(ordinals.size() == scores.size(), "every document needs a score");
    Ranking ranking(static_cast<size_t>(ordinals.size()));
    for (size_t i = 0; i < ranking.size(); ++i) {
        const float score = scores.data()[i];
        require(!std::isnan(score), "document ", ordinals.data()[i], " has a score that is no number");
        ranking[i] = {-score, ordinals.data()[i]};
    }
    keep_best(ranking, count);
    return ordinals_and_scores(ranking);
}

}  // namespace kernels
