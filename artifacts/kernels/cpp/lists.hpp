// Searching inverted lists that are laid out by a sample of queries (artifacts.dense_asked).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "code_blocks.hpp"
#include "nearest.hpp"
#include "products.hpp"
#include "scores.hpp"

namespace kernels {

// L inverted lists of mapped documents x' (m,). A list has a centre (m,), and its documents differ from it: by a standard
// deviation along each of r directions, which are given times that, in w of the m places, as bytes with a scale for each
// list; and by one variance in all others. What a document differs by is in its product codes: C of them, of 4 bits, each
// for m / C numbers, for which a codebook has the sixteen values that they stand for.
class Lists {
  public:
    // The addresses are those of each list's codes, in blocks, and of its documents' ordinals, as Faiss holds them.
    Lists(Array<float> mapping, Array<float> centres, Array<float> codebooks, Array<int64_t> places,
          Array<int8_t> directions, Array<float> scales, Array<float> others, Array<uint64_t> codes,
          Array<uint64_t> ordinals, Array<int64_t> sizes)
        : mapping_(std::move(mapping)), centres_(std::move(centres)), codebooks_(std::move(codebooks)),
          places_(std::move(places)), directions_(std::move(directions)), scales_(std::move(scales)),
          others_(std::move(others)), codes_(std::move(codes)), ordinals_(std::move(ordinals)), sizes_(std::move(sizes)) {
        require(mapping_.ndim() == 2 && centres_.ndim() == 2 && codebooks_.ndim() == 3 && directions_.ndim() == 3,
                "a mapping is (m, D), centres are (L, m), codebooks (C, 16, m / C), directions (L, r, w)");
        mapped_ = static_cast<size_t>(mapping_.shape(0));
        size_ = static_cast<size_t>(mapping_.shape(1));
        count_ = static_cast<size_t>(centres_.shape(0));
        along_ = static_cast<size_t>(directions_.shape(1));
        width_ = static_cast<size_t>(directions_.shape(2));
        parts_ = static_cast<size_t>(codebooks_.shape(0));
        require(static_cast<size_t>(centres_.shape(1)) == mapped_, "mapping and centres have the same m");
        require(codebooks_.shape(1) == VALUES && parts_ * static_cast<size_t>(codebooks_.shape(2)) == mapped_ &&
                    parts_ > 0 && parts_ <= MOST_PARTS,
                "codebooks have sixteen values for each part of m, in at least one part and at most ", MOST_PARTS);
        require(static_cast<size_t>(places_.size()) == width_ && width_ <= MOST_PLACES, "there are w places, at most ",
                MOST_PLACES);
        for (size_t i = 0; i < width_; ++i)
            require(places_.data()[i] >= 0 && static_cast<size_t>(places_.data()[i]) < mapped_, "place ",
                    places_.data()[i], " is outside 0..", mapped_ - 1);
        require(mapped_ <= MOST_PLACES, "m is at most ", MOST_PLACES);
        for (py::ssize_t rows : {directions_.shape(0), scales_.size(), others_.size(), codes_.size(), ordinals_.size(),
                                 sizes_.size()})
            require(static_cast<size_t>(rows) == count_, "every list has directions, a scale, a variance, codes and a size");
        for (size_t i = 0; i < count_; ++i) {
            require(sizes_.data()[i] >= 0, "a list has ", sizes_.data()[i], " documents");
            require(std::isfinite(scales_.data()[i]) && std::isfinite(others_.data()[i]) && others_.data()[i] >= 0,
                    "the spread of list ", i, " is none");
        }
        roughen();
    }

    // The best documents, `wanted` of them if the lists hold so many, and their scores by `scored`, with which the best
    // `candidates` by their codes are scored again. Looked into are `probes` lists, and only what is `among` some, if that
    // is given.
    py::tuple search(const Array<float> &query, size_t wanted, size_t candidates, size_t probes, float spread,
                     const std::optional<Array<uint8_t>> &among, const ByteCodes &scored) const {
        require(static_cast<size_t>(query.size()) == size_ && scored.size() == size_,
                "query and codes have the mapping's dimension");
        require(candidates > 0, "there is at least one candidate");
        require(!among || among->size() * 8 >= scored.count(), "there is a bit for every document");
        Ranking ranking;
        {
            py::gil_scoped_release other_threads;
            std::vector<float> asked(mapped_);
            products_of(mapping_.data(), mapped_, size_, query.data(), asked.data());
            const std::vector<Probe> probed = choose(asked.data(), std::min(probes, count_), spread);
            const std::vector<int64_t> found =
                scan(asked.data(), probed, candidates, among ? among->data() : nullptr, scored.count());
            for (int64_t document : found)
                require(scored.has(document), "document ", document, " is outside 0..", scored.count() - 1);
            std::vector<float> scores(found.size());
            scored.score(query.data(), found.data(), found.size(), scores.data());
            ranking.reserve(found.size());
            for (size_t i = 0; i < found.size(); ++i) {
                require(!std::isnan(scores[i]), "document ", found[i], " has a score that is no number");
                ranking.emplace_back(-scores[i], found[i]);
            }
            keep_best(ranking, wanted);
        }
        return ordinals_and_scores(ranking);
    }

  private:
    static constexpr size_t VALUES = 16, MOST_PARTS = 257, MOST_PLACES = 4096;  // sums are uint16, and products int32
    static constexpr size_t AHEAD = 2;    // blocks are asked for before they are needed
    static constexpr float RANGE = 4095;  // times 127, 4096 times, is still an int32

    struct Probe {
        uint32_t list;
        float product;  // of the query with the centre
    };

    // The centres as bytes, each with a scale, less what all have in common, which ranks none before another.
    void roughen() {
        std::vector<double> middle(mapped_);
        for (size_t list = 0; list < count_; ++list)
            for (size_t i = 0; i < mapped_; ++i)
                middle[i] += static_cast<double>(centre(list)[i]) / static_cast<double>(count_);
        rough_.resize(count_ * mapped_);
        rough_scales_.resize(count_);
        std::vector<float> apart(mapped_);
        for (size_t list = 0; list < count_; ++list) {
            float largest = std::numeric_limits<float>::min();
            for (size_t i = 0; i < mapped_; ++i) {
                apart[i] = centre(list)[i] - static_cast<float>(middle[i]);
                largest = std::max(largest, std::fabs(apart[i]));
            }
            rough_scales_[list] = largest / 127;
            for (size_t i = 0; i < mapped_; ++i)
                rough_[list * mapped_ + i] = static_cast<int8_t>(std::lrint(apart[i] / rough_scales_[list]));
        }
    }

    // The best lists by q'·centre + spread * deviation along q', the best first. They are looked for by rough centres,
    // which fit into the processor's own cache; the products of those that are found are exact.
    std::vector<Probe> choose(const float *asked, size_t wanted, float spread) const {
        float length = 0;  // its square
        products_of(asked, 1, mapped_, asked, &length);
        std::vector<int16_t> whole(mapped_), in_places(width_);
        const float step = in_steps(asked, whole.data());
        for (size_t i = 0; i < width_; ++i) in_places[i] = whole[static_cast<size_t>(places_.data()[i])];
        std::vector<int32_t> products(count_);
        whole_products(rough_.data(), count_, mapped_, whole.data(), products.data());
        std::vector<uint64_t> ranking(count_);
        for (size_t list = 0; list < count_; ++list) {
            const float scale = scales_.data()[list] * step;
            const float along =
                squares_along(directions_.data() + list * along_ * width_, in_places.data(), along_, width_);
            const float variance = along * scale * scale + others_.data()[list] * length;
            const float product = static_cast<float>(products[list]) * (rough_scales_[list] * step);
            ranking[list] = key(product + spread * std::sqrt(variance), static_cast<uint32_t>(list));
        }
        const auto last = ranking.begin() + static_cast<ptrdiff_t>(wanted);
        std::nth_element(ranking.begin(), last, ranking.end(), std::greater<>());
        std::sort(ranking.begin(), last, std::greater<>());
        std::vector<Probe> probed(wanted);
        for (size_t i = 0; i < wanted; ++i) {
            probed[i].list = ~static_cast<uint32_t>(ranking[i]);
            products_of(centre(probed[i].list), 1, mapped_, asked, &probed[i].product);
        }
        return probed;
    }

    // The ordinals of the best documents by their codes, at least `wanted` if there are so many: all that are as good as
    // the last one, too.
    std::vector<int64_t> scan(const float *asked, const std::vector<Probe> &probed, size_t wanted, const uint8_t *among,
                              int64_t documents) const {
        static const BlockSums sums_of = best_block_sums();
        float least = std::numeric_limits<float>::infinity(), most = -least;
        for (const Probe &probe : probed) {
            least = std::min(least, probe.product);
            most = std::max(most, probe.product);
        }
        const size_t pairs = (parts_ + 1) / 2;
        std::vector<uint8_t> tables(pairs * BLOCK);
        const float step = tables_of(asked, probed.empty() ? 0 : most - least, tables.data());
        Nearest nearest(wanted, parts_ * 255 + static_cast<size_t>(MOST_OFFSET) + 1);
        uint16_t sums[BLOCK];
        for (size_t i = 0; i < probed.size(); ++i) {
            const Probe &probe = probed[i], &next = probed[std::min(i + 1, probed.size() - 1)];
            const auto *ordinals = reinterpret_cast<const int64_t *>(static_cast<uintptr_t>(ordinals_.data()[probe.list]));
            const size_t size = size_of(probe), blocks = blocks_of(probe);
            const auto offset = static_cast<uint32_t>(std::lrint((probe.product - least) / step));
            for (size_t block = 0; block < blocks; ++block) {
                const uint32_t needed = nearest.least() > offset ? nearest.least() - offset : 0;
                if (needed > std::numeric_limits<uint16_t>::max()) break;  // no sum is so large
                const size_t later = block + AHEAD;
                const uint8_t *ahead = later < blocks ? block_of(probe, later)
                                                      : block_of(next, std::min(later - blocks, blocks_of(next)));
                uint32_t found = sums_of(block_of(probe, block), tables.data(), pairs, ahead,
                                         static_cast<uint16_t>(needed), sums);
                const size_t first = block * BLOCK;
                if (size - first < BLOCK) found &= (uint32_t{1} << (size - first)) - 1;
                for (; found; found &= found - 1) {
                    const auto place = static_cast<size_t>(__builtin_ctz(found));
                    const int64_t *ordinal = ordinals + first + place;
                    if (among && !allowed(*ordinal, among, documents)) continue;
                    nearest.add(offset + sums[place], ordinal);
                }
            }
        }
        return nearest.ordinals();
    }

    static bool allowed(int64_t ordinal, const uint8_t *among, int64_t documents) {
        return ordinal >= 0 && ordinal < documents && (among[ordinal / 8] >> ordinal % 8 & 1);
    }

    size_t size_of(const Probe &probe) const { return static_cast<size_t>(sizes_.data()[probe.list]); }

    size_t blocks_of(const Probe &probe) const { return (size_of(probe) + BLOCK - 1) / BLOCK; }

    const uint8_t *block_of(const Probe &probe, size_t number) const {
        const auto *first = reinterpret_cast<const uint8_t *>(static_cast<uintptr_t>(codes_.data()[probe.list]));
        return first + number * ((parts_ + 1) / 2) * BLOCK;
    }

    // What the values of each part add to a score, less the part's least, in steps, one for all parts, which is returned.
    // A step is wide enough for scores that differ by `range`, too.
    float tables_of(const float *asked, float range, uint8_t *tables) const {
        const size_t width = mapped_ / parts_;
        std::vector<float> products(parts_ * VALUES), lowest(parts_);
        float widest = 0;
        for (size_t part = 0; part < parts_; ++part) {
            float *theirs = products.data() + part * VALUES;
            for (size_t value = 0; value < VALUES; ++value) {
                const float *values = codebooks_.data() + (part * VALUES + value) * width;
                theirs[value] = 0;
                for (size_t i = 0; i < width; ++i) theirs[value] += values[i] * asked[part * width + i];
            }
            const auto [low, high] = std::minmax_element(theirs, theirs + VALUES);
            lowest[part] = *low;
            widest = std::max(widest, *high - *low);
        }
        const float step = std::max({widest / 255, range / MOST_OFFSET, std::numeric_limits<float>::min()});
        for (size_t part = 0; part < parts_; ++part)
            for (size_t value = 0; value < VALUES; ++value)
                tables[part * VALUES + value] =
                    static_cast<uint8_t>(std::lrint((products[part * VALUES + value] - lowest[part]) / step));
        return step;
    }

    // A query's numbers (m,) as multiples of a step, which is returned.
    float in_steps(const float *asked, int16_t *whole) const {
        float largest = 0;
        for (size_t i = 0; i < mapped_; ++i) largest = std::max(largest, std::fabs(asked[i]));
        const float step = std::max(largest / RANGE, std::numeric_limits<float>::min());
        for (size_t i = 0; i < mapped_; ++i) whole[i] = static_cast<int16_t>(std::lrint(asked[i] / step));
        return step;
    }

    const float *centre(size_t list) const { return centres_.data() + list * mapped_; }

    // Larger for a larger score, and of equal ones for the first list, whose complement stands below.
    static uint64_t key(float score, uint32_t list) {
        uint32_t bits;
        std::memcpy(&bits, &score, sizeof bits);
        bits = bits >> 31 ? ~bits : bits | 0x80000000u;
        return uint64_t{bits} << 32 | static_cast<uint32_t>(~list);
    }

    static constexpr float MOST_OFFSET = 32768;  // steps between the products of two centres

    Array<float> mapping_, centres_, codebooks_;
    Array<int64_t> places_;
    Array<int8_t> directions_;
    Array<float> scales_, others_;
    Array<uint64_t> codes_, ordinals_;
    Array<int64_t> sizes_;
    std::vector<int8_t> rough_;  // centres (L, m), times
    std::vector<float> rough_scales_;
    size_t mapped_, size_, count_, along_, width_, parts_;
};

}  // namespace kernels
