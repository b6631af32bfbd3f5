// The posting lists of all terms, in a file as PlainImpacts.java writes it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "arrays.hpp"
#include "impact_list.hpp"
#include "impact_scan.hpp"

namespace kernels {

class Impacts {
  public:
    Impacts(Array<uint8_t> file, int64_t documents) : file_(std::move(file)) {
        require(documents >= 0 && documents <= std::numeric_limits<int32_t>::max(), "too many documents");
        documents_ = static_cast<uint32_t>(documents);
        windows_ = (documents_ + WINDOW - 1) / WINDOW;
        data_ = file_.data();
        const int64_t end = file_.size() - FOOTER - 8;
        const int64_t table = end < 0 ? -1 : load<int64_t>(data_ + end);
        require(table >= 0 && table <= end - 4, DAMAGED);
        terms_ = load<int32_t>(data_ + table);
        require(terms_ >= 0 && (end - table - 4) % ROW == 0 && (end - table - 4) / ROW == terms_, DAMAGED);
        ids_ = data_ + table + 4;
        largest_ = ids_ + 4 * int64_t{terms_};
        counts_ = largest_ + 4 * int64_t{terms_};
        starts_ = counts_ + 4 * int64_t{terms_};
        for (int32_t place = 0; place < terms_; ++place) require(fits(place, table), DAMAGED);
        sound_ = std::vector<std::atomic<bool>>(static_cast<size_t>(terms_));
    }

    py::tuple search(const Array<int32_t> &terms, const Array<float> &weights, int64_t k,
                     const std::optional<Array<uint8_t>> &among, double asked) const {
        require(terms.size() == weights.size(), "every term needs a weight");
        require(k > 0, "k must be at least 1");
        require(!among || among->size() >= (int64_t{documents_} + 7) / 8, "a document has no bit");
        std::vector<uint64_t> best;
        {
            py::gil_scoped_release other_threads;
            const auto most = static_cast<size_t>(std::min<int64_t>(k, documents_));
            const uint8_t *const bits = among ? among->data() : nullptr;
            best = ImpactScan(lists_of(terms, weights, 1), lists_of(terms, weights, -1), documents_, most, bits, asked).best();
        }
        Array<int64_t> ordinals(static_cast<py::ssize_t>(best.size()));
        Array<float> scores(static_cast<py::ssize_t>(best.size()));
        for (size_t i = 0; i < best.size(); ++i) {
            ordinals.mutable_data()[i] = std::numeric_limits<uint32_t>::max() - static_cast<uint32_t>(best[i]);
            const auto bits = static_cast<uint32_t>(best[i] >> 32);
            std::memcpy(scores.mutable_data() + i, &bits, sizeof bits);
        }
        return py::make_tuple(ordinals, scores);
    }

    Array<float> scores(const Array<int32_t> &terms, const Array<float> &weights,
                        const Array<int64_t> &ordinals) const {
        require(terms.size() == weights.size(), "every term needs a weight");
        check(ordinals);
        const auto count = static_cast<size_t>(ordinals.size());
        Array<float> scores(ordinals.size());
        float *score = scores.mutable_data();
        const int64_t *ordinal = ordinals.data();
        py::gil_scoped_release other_threads;
        std::vector<double> added(count), subtracted(count);
        for (const ImpactList &list : lists_of(terms, weights, 1)) list.add_products(ordinal, count, added.data());
        for (const ImpactList &list : lists_of(terms, weights, -1)) list.add_products(ordinal, count, subtracted.data());
        for (size_t i = 0; i < count; ++i) score[i] = static_cast<float>(added[i]) - static_cast<float>(subtracted[i]);
        return scores;
    }

    Array<int32_t> impacts(const Array<int32_t> &terms, const Array<int64_t> &ordinals) const {
        check(ordinals);
        Array<int32_t> found({ordinals.size(), terms.size()});
        int32_t *impact = found.mutable_data();
        py::gil_scoped_release other_threads;
        for (py::ssize_t i = 0; i < terms.size(); ++i) {
            const std::optional<ImpactList> list = list_of(terms.data()[i]);
            for (py::ssize_t j = 0; j < ordinals.size(); ++j)
                impact[j * terms.size() + i] =
                    list ? static_cast<int32_t>(list->impact(static_cast<uint32_t>(ordinals.data()[j]))) : 0;
        }
        return found;
    }

  private:
    static constexpr int64_t FOOTER = 16, ROW = 4 + 4 + 4 + 8;
    static constexpr const char *DAMAGED = "the file of impacts is damaged";

    // Whether a term's list lies where lists are.
    bool fits(int32_t place, int64_t table) const {
        const auto largest = load<int32_t>(largest_ + 4 * int64_t{place});
        const int64_t count = load<int32_t>(counts_ + 4 * int64_t{place});
        const auto start = load<int64_t>(starts_ + 8 * int64_t{place});
        if (place > 0 && load<int32_t>(ids_ + 4 * int64_t{place}) <= load<int32_t>(ids_ + 4 * int64_t{place - 1}))
            return false;
        if (count < 1 || count > documents_ || largest < 1 || start == 0 || start < -table || start > table) return false;
        return start > 0 ? largest < static_cast<int32_t>(WINDOW) && start + 4 * int64_t{windows_} + 3 * count <= table
                         : -start + 6 * count <= table;
    }

    ImpactList list_at(int32_t place) const {
        ImpactList list;
        const auto start = load<int64_t>(starts_ + 8 * int64_t{place});
        list.largest = load<uint32_t>(largest_ + 4 * int64_t{place});
        list.count = load<uint32_t>(counts_ + 4 * int64_t{place});
        list.postings = data_ + std::abs(start);
        if (start < 0) return list;
        list.ends = list.postings;
        list.postings += 4 * size_t{windows_};
        std::atomic<bool> &sound = sound_[static_cast<size_t>(place)];
        if (!sound.load(std::memory_order_relaxed)) {
            require(are_ends(list.ends, windows_) && list.last(windows_ - 1) == list.count, DAMAGED);
            sound.store(true, std::memory_order_relaxed);
        }
        return list;
    }

    std::optional<ImpactList> list_of(int32_t id) const {
        int32_t low = 0, high = terms_;
        while (low < high) {
            const int32_t middle = low + (high - low) / 2;
            if (load<int32_t>(ids_ + 4 * int64_t{middle}) < id)
                low = middle + 1;
            else
                high = middle;
        }
        if (low == terms_ || load<int32_t>(ids_ + 4 * int64_t{low}) != id) return std::nullopt;
        return list_at(low);
    }

    // The lists of the query's terms whose weights have this sign, with the weights' absolute values.
    std::vector<ImpactList> lists_of(const Array<int32_t> &terms, const Array<float> &weights, float sign) const {
        std::vector<ImpactList> lists;
        for (py::ssize_t i = 0; i < terms.size(); ++i) {
            const float weight = sign * weights.data()[i];
            std::optional<ImpactList> list = weight > 0 ? list_of(terms.data()[i]) : std::nullopt;
            if (!list) continue;
            list->weight = weight;
            list->most = list->product(list->largest);
            lists.push_back(*list);
        }
        return lists;
    }

    void check(const Array<int64_t> &ordinals) const {
        for (py::ssize_t i = 0; i < ordinals.size(); ++i)
            require(ordinals.data()[i] >= 0 && ordinals.data()[i] < documents_, "document ", ordinals.data()[i],
                    " is none");
    }

    Array<uint8_t> file_;
    const uint8_t *data_;
    uint32_t documents_, windows_;
    int32_t terms_;
    const uint8_t *ids_, *largest_, *counts_, *starts_;
    mutable std::vector<std::atomic<bool>> sound_;  // whether a list's ends were looked at
};

}  // namespace kernels
