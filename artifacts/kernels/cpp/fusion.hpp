// Fusion of rankings; the formulas stand in service/search/fusion.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"

namespace kernels {

constexpr double FLOOR = 0.001;
constexpr double SMALLEST_RANGE = 1e-9;
constexpr double UNKNOWN = std::numeric_limits<double>::quiet_NaN();

struct Candidate {
    int64_t ordinal;
    int64_t rank;
    double score;
    size_t leg;
};

// A leg's candidates with their ranks: by score, ties by ordinal.
inline void add_ranked(const Converted<int64_t> &ordinals, const Converted<double> &scores, size_t leg,
                std::vector<Candidate> &candidates) {
    require(ordinals.ndim() == 1 && scores.ndim() == 1 && ordinals.size() == scores.size(),
            "leg ", leg, " has ", ordinals.size(), " ordinals, but ", scores.size(), " scores");
    const auto begin = static_cast<std::ptrdiff_t>(candidates.size());
    for (py::ssize_t i = 0; i < scores.size(); ++i) {
        require(std::isfinite(scores.data()[i]), "leg ", leg, " has scores that are not finite numbers");
        candidates.push_back({ordinals.data()[i], 0, scores.data()[i], leg});
    }
    const auto better = [](const Candidate &one, const Candidate &other) {
        return one.score != other.score ? one.score > other.score : one.ordinal < other.ordinal;
    };
    if (!std::is_sorted(candidates.begin() + begin, candidates.end(), better))
        std::sort(candidates.begin() + begin, candidates.end(), better);
    int64_t rank = 0;
    for (auto one = candidates.begin() + begin; one != candidates.end(); ++one) one->rank = ++rank;
}

inline py::tuple align(const std::vector<std::pair<Converted<int64_t>, Converted<double>>> &legs) {
    std::vector<Candidate> candidates;
    for (size_t leg = 0; leg < legs.size(); ++leg) add_ranked(legs[leg].first, legs[leg].second, leg, candidates);
    std::sort(candidates.begin(), candidates.end(), [](const Candidate &one, const Candidate &other) {
        return one.ordinal != other.ordinal ? one.ordinal < other.ordinal : one.leg < other.leg;
    });
    std::vector<int64_t> columns;
    columns.reserve(candidates.size());
    for (size_t i = 0; i < candidates.size(); ++i) {
        const bool fresh = i == 0 || candidates[i].ordinal != candidates[i - 1].ordinal;
        require(fresh || candidates[i].leg != candidates[i - 1].leg,
                "leg ", candidates[i].leg, " has an ordinal more than once");
        if (fresh) columns.push_back(candidates[i].ordinal);
    }
    const size_t width = columns.size(), cells = legs.size() * width;
    const std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(legs.size()), static_cast<py::ssize_t>(width)};
    Array<double> scores(shape);
    Array<int64_t> ranks(shape);
    double *score = scores.mutable_data();
    int64_t *rank = ranks.mutable_data();
    std::fill(score, score + cells, UNKNOWN);
    std::fill(rank, rank + cells, 0);
    size_t column = 0;
    for (const Candidate &one : candidates) {
        while (columns[column] != one.ordinal) ++column;
        score[one.leg * width + column] = one.score;
        rank[one.leg * width + column] = one.rank;
    }
    return py::make_tuple(array_of(columns), scores, ranks);
}

// The documents whose score is unknown.
inline Array<int64_t> unknown(const Array<int64_t> &ordinals, const Array<double> &scores) {
    require(ordinals.size() == scores.size(), "every document needs a score, be it unknown");
    std::vector<int64_t> found;
    for (py::ssize_t i = 0; i < scores.size(); ++i)
        if (std::isnan(scores.data()[i])) found.push_back(ordinals.data()[i]);
    return array_of(found);
}

// Puts numbers in the places of unknown scores; false, and nothing is changed, if one is not finite.
inline bool fill(Array<double> &scores, const Converted<double> &numbers) {
    double *score = scores.mutable_data();
    const double *number = numbers.data(), *const end = number + numbers.size();
    if (!std::all_of(number, end, [](double one) { return std::isfinite(one); })) return false;
    require(std::count_if(score, score + scores.size(), [](double one) { return std::isnan(one); }) == numbers.size(),
            "every unknown score needs a number");
    for (; number != end; ++score)
        if (std::isnan(*score)) *score = *number++;
    return true;
}

// The scores that a normalisation is made of.
struct Known {
    double low = UNKNOWN, high = UNKNOWN, mean = 0.0, deviation = 0.0;
};

template <class Counts>
Known known(const double *scores, size_t width, const Counts &counts) {
    Known found;
    double count = 0.0, squares = 0.0;
    for (size_t i = 0; i < width; ++i)
        if (counts(i)) {
            found.low = std::fmin(found.low, scores[i]);
            found.high = std::fmax(found.high, scores[i]);
            found.mean += scores[i];
            ++count;
        }
    if (count == 0.0) return found;
    found.mean /= count;
    for (size_t i = 0; i < width; ++i)
        if (counts(i)) squares += (scores[i] - found.mean) * (scores[i] - found.mean);
    if (found.high > found.low) found.deviation = std::sqrt(squares / count);
    return found;
}

// What a leg adds to each fused score, before its weight.
inline void add_shares(const std::string &by, double constant, const double *scores, const int64_t *ranks, size_t width,
                double *shares) {
    const bool paper = by == "paper", rank = by == "rank", zscore = by == "zscore", dbsf = by == "dbsf";
    const auto counts = [&](size_t i) { return paper || dbsf ? ranks[i] > 0 : !std::isnan(scores[i]); };
    const Known all = known(scores, width, counts);
    const double spread = all.high - all.low;
    const auto standard = [&](double score) { return all.deviation == 0.0 ? 0.0 : (score - all.mean) / all.deviation; };
    for (size_t i = 0; i < width; ++i) {
        if (rank)
            shares[i] = ranks[i] > 0 ? 1.0 / (constant + static_cast<double>(ranks[i])) : 0.0;
        else if (zscore)
            shares[i] = std::isnan(all.low) ? 0.0 : standard(counts(i) ? scores[i] : all.low);
        else if (!counts(i))
            shares[i] = 0.0;
        else if (dbsf)
            shares[i] = 0.5 + standard(scores[i]) / 6.0;
        else if (paper)
            shares[i] = (scores[i] - all.low) / std::max(spread, SMALLEST_RANGE);
        else
            shares[i] = spread == 0.0 ? 1.0 : FLOOR + (1.0 - FLOOR) * ((scores[i] - all.low) / spread);
    }
}

// The columns that a leg with a weight proposed, best first. Those of one such leg alone have its own order, unless
// another leg, which proposed none, adds more to some of them than to others.
inline std::vector<py::ssize_t> order_of(const std::vector<double> &weights, const int64_t *ranks, const double *shares,
                                  const double *fused, size_t width) {
    std::vector<const int64_t *> speaking;
    bool weighed = false;
    for (size_t leg = 0; leg < weights.size(); ++leg) {
        const int64_t *own = ranks + leg * width;
        const double *share = shares + leg * width;
        if (weights[leg] > 0 && std::any_of(own, own + width, [](int64_t rank) { return rank > 0; }))
            speaking.push_back(own);
        else if (std::any_of(share, share + width, [=](double one) { return one != share[0]; }))
            weighed = true;
    }
    std::vector<py::ssize_t> order;
    order.reserve(width);
    for (size_t i = 0; i < width; ++i)
        if (std::any_of(speaking.begin(), speaking.end(), [i](const int64_t *own) { return own[i] > 0; }))
            order.push_back(static_cast<py::ssize_t>(i));
    const int64_t *alone = speaking.size() == 1 && !weighed ? speaking[0] : nullptr;
    std::stable_sort(order.begin(), order.end(), [=](py::ssize_t one, py::ssize_t other) {
        return alone ? alone[one] < alone[other] : fused[one] > fused[other];
    });
    return order;
}

inline py::tuple fuse(const Array<double> &scores, const Array<int64_t> &ranks, const std::vector<double> &weights,
               const std::string &by, double constant) {
    require(scores.ndim() == 2 && ranks.ndim() == 2 && scores.shape(0) == ranks.shape(0) &&
                scores.shape(1) == ranks.shape(1) && static_cast<size_t>(scores.shape(0)) == weights.size(),
            "scores and ranks have shape (legs, u), and every leg a weight");
    require(by == "range" || by == "paper" || by == "zscore" || by == "dbsf" || by == "rank",
            "scores are fused by range, paper, zscore, dbsf or rank");
    const auto width = static_cast<size_t>(scores.shape(1));
    Array<double> shares({scores.shape(0), scores.shape(1)}), fused(scores.shape(1));
    double *total = fused.mutable_data();
    std::fill(total, total + width, 0.0);
    for (size_t leg = 0; leg < weights.size(); ++leg) {
        double *share = shares.mutable_data() + leg * width;
        add_shares(by, constant, scores.data() + leg * width, ranks.data() + leg * width, width, share);
        for (size_t i = 0; i < width; ++i) total[i] += share[i] *= weights[leg];
    }
    const auto order = order_of(weights, ranks.data(), shares.data(), total, width);
    return py::make_tuple(array_of(order), shares, fused);
}

}  // namespace kernels
