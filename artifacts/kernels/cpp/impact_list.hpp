// A posting list of impacts as PlainImpacts.java writes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arrays.hpp"
#include "window_sums.hpp"

namespace kernels {

// The list of a term with the absolute value of the query's weight of it. A frequent one is cut by windows of the documents,
// three bytes a posting, twelve bits for the place in the window and twelve for the impact; a rare one has a document number
// of four bytes for each posting, and behind these an impact of two for each.
struct ImpactList {
    const uint8_t *ends = nullptr;  // of the windows' postings, none in a rare list
    const uint8_t *postings = nullptr;
    uint32_t count = 0;
    uint32_t largest = 0;
    float weight = 0;
    double most = 0;      // that it adds to a sum
    uint32_t next = 0;    // of a rare list, where the postings of the window begin
    uint32_t mask = 0;    // of a frequent list, of the impacts in its table of products,
    size_t products = 0;  // which begins here

    uint32_t first(uint32_t window) const { return window == 0 ? 0 : load<uint32_t>(ends + 4 * (window - 1)); }
    uint32_t last(uint32_t window) const { return load<uint32_t>(ends + 4 * window); }
    uint32_t document(uint32_t place) const { return load<uint32_t>(postings + 4 * size_t{place}); }
    uint32_t rare_impact(uint32_t place) const {
        return load<uint16_t>(postings + 4 * size_t{count} + 2 * size_t{place});
    }

    // The impact in a document, 0 where it lacks the term.
    uint32_t impact(uint32_t document) const { return ends ? frequent_impact(document) : rare_impact_of(document); }

    // A term's share of a document's sum, rounded to a float.
    float product(uint32_t impact) const { return weight * static_cast<float>(impact); }

    // Adds the products of documents to their sums. The places where they may be are asked for, all before the first is
    // looked at: they lie all over the list.
    void add_products(const int64_t *documents, size_t count, double *sums) const {
        constexpr size_t TOGETHER = 64;
        uint32_t lows[TOGETHER], sizes[TOGETHER];
        for (size_t start = 0; start < count; start += TOGETHER) {
            const size_t some = std::min(TOGETHER, count - start);
            for (size_t i = 0; ends && i < some; ++i) {
                const uint32_t window = static_cast<uint32_t>(documents[start + i]) / WINDOW;
                lows[i] = first(window);
                sizes[i] = last(window) - lows[i];
                for (size_t quarter = 1; quarter < 4; ++quarter)
                    __builtin_prefetch(postings + 3 * (lows[i] + sizes[i] * quarter / 4));
            }
            for (size_t i = 0; i < some; ++i) {
                const auto document = static_cast<uint32_t>(documents[start + i]);
                const uint32_t found = ends ? impact_within(lows[i], sizes[i], document) : rare_impact_of(document);
                sums[start + i] += product(found);
            }
        }
    }

  private:
    uint32_t frequent_impact(uint32_t document) const {
        const uint32_t window = document / WINDOW, low = first(window);
        return impact_within(low, last(window) - low, document);
    }

    // The impact in a document of whose window there are so many postings from `low` on.
    uint32_t impact_within(uint32_t low, uint32_t size, uint32_t document) const {
        const uint32_t wanted = document % WINDOW;
        if (size == 0) return 0;
        while (size > 1) {  // without branches: the last posting that is not beyond the one that is wanted
            const uint32_t half = size / 2;
            low = (load<uint32_t>(postings + 3 * size_t{low + half}) & (WINDOW - 1)) <= wanted ? low + half : low;
            size -= half;
        }
        const uint32_t posting = load<uint32_t>(postings + 3 * size_t{low});
        return (posting & (WINDOW - 1)) == wanted ? posting >> 12 & (WINDOW - 1) : 0;
    }

    uint32_t rare_impact_of(uint32_t wanted) const {
        uint32_t low = 0, size = count;
        while (size > 1) {
            const uint32_t half = size / 2;
            low = document(low + half) <= wanted ? low + half : low;
            size -= half;
        }
        return size && document(low) == wanted ? rare_impact(low) : 0;
    }
};

// Whether the numbers can be where the postings of a list's windows end.
ALSO_FOR_AVX2 inline bool are_ends(const uint8_t *ends, uint32_t windows) {
    bool wrong = windows > 0 && load<uint32_t>(ends) > WINDOW;
    // Where one is less than the one before, the difference is a large number.
    for (size_t window = 1; window < windows; ++window)
        wrong |= load<uint32_t>(ends + 4 * window) - load<uint32_t>(ends + 4 * window - 4) > WINDOW;
    return !wrong;
}

}  // namespace kernels
