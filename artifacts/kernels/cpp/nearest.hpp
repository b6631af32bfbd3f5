// The best of documents that come one after the other, when scores are small integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kernels {

// Keeps count of how many documents have which score, in buckets, and so knows at any time what a document must score to
// be among the best.
class Nearest {
  public:
    // The best `wanted` of scores below `range`; more of them where several are in the bucket of the last.
    Nearest(size_t wanted, size_t range) : wanted_(wanted), counts_((range >> BITS) + 1) { entries_.reserve(8 * wanted); }

    // The least score that a document needs.
    uint32_t least() const { return bucket_ << BITS; }

    void add(uint32_t score, const int64_t *ordinal) {
        const uint32_t bucket = score >> BITS;
        if (bucket < bucket_) return;
        entries_.push_back({ordinal, bucket});
        ++counts_[bucket];
        ++held_;
        while (held_ - counts_[bucket_] >= wanted_) held_ -= counts_[bucket_++];
    }

    // Those of the best, in the order in which they came.
    std::vector<int64_t> ordinals() {
        size_t count = 0;
        for (const Entry &entry : entries_) {
            if (entry.bucket < bucket_) continue;
            __builtin_prefetch(entry.ordinal);
            entries_[count++] = entry;
        }
        std::vector<int64_t> found(count);
        for (size_t i = 0; i < count; ++i) found[i] = *entries_[i].ordinal;
        return found;
    }

  private:
    static constexpr uint32_t BITS = 2;  // of a score that don't tell buckets apart

    struct Entry {
        const int64_t *ordinal;
        uint32_t bucket;
    };

    size_t wanted_, held_ = 0;
    uint32_t bucket_ = 0;  // the lowest that is among the best
    std::vector<uint32_t> counts_;
    std::vector<Entry> entries_;
};

}  // namespace kernels
