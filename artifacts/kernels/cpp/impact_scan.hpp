// The best documents of weighted posting lists.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "impact_list.hpp"

namespace kernels {

// The best documents of a weighted query, by adding up its postings: window by window of the documents, and in a window
// list by list. Lists that together are far from lifting a document above the last of the best hits are not added up, but
// asked for the documents that the others make promising (MaxScore), unless there are too many of them. Within the others
// nothing is skipped: learned impacts give them flat bounds.
//
// Sums are exact (weighted_terms.hpp), so bounds and scores need no allowance for rounding. A document's score is the sum
// of its products, as a float, less that of the subtracted lists, which are asked for promising documents alone.
class ImpactScan {
  public:
    ImpactScan(std::vector<ImpactList> lists, std::vector<ImpactList> subtracted, uint32_t documents, size_t k,
               const uint8_t *among, double asked)
        : lists_(std::move(lists)), subtracted_(std::move(subtracted)), documents_(documents), k_(k), among_(among),
          asked_(asked), rest_(lists_.size() + 1, 0.0) {
        std::stable_sort(lists_.begin(), lists_.end(), [](auto &one, auto &other) { return one.most > other.most; });
        size_t size = 0;
        for (ImpactList &list : lists_) {
            for (list.mask = 15; list.ends && list.mask < list.largest;) list.mask = 2 * list.mask + 1;
            list.products = size;
            if (list.ends) size += list.mask + 1;
        }
        products_.resize(size);
        for (const ImpactList &list : lists_)
            for (uint32_t i = 0; list.ends && i <= list.mask; ++i)
                products_[list.products + i] = list.product(i);
        for (size_t i = lists_.size(); i-- > 0;) rest_[i] = rest_[i + 1] + lists_[i].most;
        best_.reserve(2 * k_ + SPARE);
    }

    // By score, ties by ordinal: a score's bits in the upper half of each, above 0, and the ordinal's complement below.
    std::vector<uint64_t> best() {
        const size_t total = lists_.size();
        size_t added = total;
        for (uint32_t window = 0; window * uint64_t{WINDOW} < documents_; ++window) {
            while (added > 0 && rest_[added - 1] <= least_ * asked_) --added;
            bool any = false;
            for (size_t i = 0; i < added; ++i) any |= add(lists_[i], window);
            if (!any) continue;
            // What scores nothing by these lists isn't lifted by the others: they add less than the last hit's score.
            const double bound = std::max(0.0, least_ - rest_[added]);
            size_t count = take_above_(sums_, bound, places_, promising_);
            // Only a damaged file has postings behind the last document.
            while (count > 0 && window * uint64_t{WINDOW} + places_[count - 1] >= documents_) --count;
            if (among_) count = filtered(window, count);
            for (size_t i = added; i < total && count > 0; ++i) count = rise(i, window, count);
            for (size_t i = 0; i < count; ++i) propose(window * WINDOW + places_[i], static_cast<float>(promising_[i]));
        }
        keep_best();
        std::sort(best_.begin(), best_.end(), std::greater<>());
        return std::move(best_);
    }

  private:
    // Asking a list for a document takes about as long as adding up so many postings.
    static constexpr uint64_t ASKING = 32;
    static constexpr size_t LINE = 64;   // of the processor's caches
    static constexpr size_t SPARE = 64;  // proposals, at least, before the best of them are chosen

    // Adds a list's products in a window; whether it has any there.
    bool add(ImpactList &list, uint32_t window) {
        if (!list.ends) return add_rare(list, window);
        const uint8_t *posting = list.postings + 3 * size_t{list.first(window)};
        const uint8_t *const end = list.postings + 3 * size_t{list.last(window)};
        const float *const products = products_.data() + list.products;
        const uint32_t mask = list.mask;
        const bool any = posting < end;
        // The next window's postings come behind these, and are needed when the other lists are done with this one.
        const auto next = reinterpret_cast<uintptr_t>(end);  // no pointer: it may lie behind the file
        for (auto at = next; at < next + (end - posting); at += LINE) __builtin_prefetch(reinterpret_cast<void *>(at));
#pragma GCC unroll 4
        for (; posting < end; posting += 3) {
            const auto bits = load<uint32_t>(posting);
            sums_[bits & (WINDOW - 1)] += products[bits >> 12 & mask];
        }
        return any;
    }

    // Makes the sums 0 again that a list was added to.
    void clear(const ImpactList &list, uint32_t window) {
        if (list.ends && list.last(window) - list.first(window) < WINDOW / 16) {
            const uint8_t *const end = list.postings + 3 * size_t{list.last(window)};
            for (const uint8_t *posting = list.postings + 3 * size_t{list.first(window)}; posting < end; posting += 3)
                sums_[load<uint16_t>(posting) & (WINDOW - 1)] = 0;
        } else {
            std::memset(sums_, 0, sizeof sums_);
        }
    }

    bool add_rare(ImpactList &list, uint32_t window) {
        const uint32_t base = window * WINDOW;
        bool any = false;
        // It may have been left alone for some windows.
        while (list.next < list.count && list.document(list.next) < base) ++list.next;
        for (; list.next < list.count; ++list.next) {
            const uint32_t place = list.document(list.next) - base;
            if (place >= WINDOW) break;
            sums_[place] += list.product(list.rare_impact(list.next));
            any = true;
        }
        return any;
    }

    size_t filtered(uint32_t window, size_t count) {
        size_t left = 0;
        for (size_t i = 0; i < count; ++i) {
            const uint32_t document = window * WINDOW + places_[i];
            places_[left] = places_[i];
            promising_[left] = promising_[i];
            left += among_[document / 8] >> document % 8 & 1;
        }
        return left;
    }

    // Adds a list's products for promising documents, of which there are so many; gives how many are left.
    size_t rise(size_t number, uint32_t window, size_t count) {
        ImpactList &list = lists_[number];
        if (count * ASKING * documents_ >= uint64_t{list.count} * WINDOW) {
            if (!add(list, window)) return count;
            size_t left = 0;
            for (size_t i = 0; i < count; ++i) {
                const uint16_t place = places_[i];
                const double sum = promising_[i] + sums_[place];
                places_[left] = place;
                promising_[left] = sum;
                left += sum + rest_[number + 1] > least_;
            }
            clear(list, window);
            return left;
        }
        size_t left = 0;
        for (size_t i = 0; i < count; ++i) {
            const uint16_t place = places_[i];
            if (promising_[i] + rest_[number] <= least_) continue;
            promising_[left] = promising_[i] + list.product(list.impact(window * WINDOW + place));
            places_[left++] = place;
        }
        return left;
    }

    // Of equal documents, the first one is the better hit, and comes first.
    void propose(uint32_t document, float score) {
        if (!(score > least_)) return;
        if (!subtracted_.empty()) {
            double sum = 0;
            for (const ImpactList &list : subtracted_) sum += list.product(list.impact(document));
            score -= static_cast<float>(sum);
            if (!(score > least_)) return;
        }
        uint32_t bits;
        std::memcpy(&bits, &score, sizeof bits);
        best_.push_back(uint64_t{bits} << 32 | (std::numeric_limits<uint32_t>::max() - document));
        if (best_.size() == best_.capacity()) keep_best();
    }

    // Leaves the best k of those proposed, and notes what the last of them scores.
    void keep_best() {
        if (best_.empty() || best_.size() < k_) return;
        const auto last = best_.begin() + static_cast<ptrdiff_t>(k_ - 1);
        std::nth_element(best_.begin(), last, best_.end(), std::greater<>());
        const auto bits = static_cast<uint32_t>(*last >> 32);
        std::memcpy(&least_, &bits, sizeof bits);
        best_.resize(k_);
    }

    const TakeAbove take_above_ = best_take_above();
    std::vector<ImpactList> lists_, subtracted_;
    uint32_t documents_;
    size_t k_;
    const uint8_t *among_;
    double asked_;
    std::vector<double> rest_;  // what the lists from this one on can add to a sum
    std::vector<float> products_;
    std::vector<uint64_t> best_;  // and more that were proposed since the last hit's score was noted
    float least_ = 0;             // a document must score more: one that scores as much as the last hit comes after it
    alignas(64) double sums_[WINDOW] = {};  // of a window, 0 between two of them
    uint16_t places_[WINDOW + 1];    // promising documents of a window,
    double promising_[WINDOW + 1];  // and the sum of each
};

}  // namespace kernels
