// The token ids of words, remembered.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"

namespace kernels {

// The ids of words that were met before, at the beginning of a text or behind a space. What was not asked for while so
// many others were met is forgotten: of two generations, the older one is dropped when the younger is full.
class Words {
  public:
    Words(py::function encode, const std::string &taken, size_t most)
        : encode_(std::move(encode)), taken_{}, most_(most) {
        require(most > 0 && most <= 1 << 20, "from 1 to 1,048,576 words are remembered");
        for (const char sign : taken) taken_[static_cast<uint8_t>(sign)] = true;
        for (Generation &one : generations_) one.slots.resize(power_of_two(2 * most));
    }

    std::optional<std::vector<int32_t>> ids(const py::str &text) {
        if (PyUnicode_KIND(text.ptr()) != PyUnicode_1BYTE_KIND) return std::nullopt;
        const auto *at = PyUnicode_1BYTE_DATA(text.ptr());
        const auto *const end = at + PyUnicode_GET_LENGTH(text.ptr());
        std::vector<int32_t> found;
        found.reserve(64);
        for (bool later = false;; later = true) {
            const auto *const word = at;
            while (at < end && taken_[*at]) ++at;
            const auto length = static_cast<size_t>(at - word);
            if ((at < end && *at != ' ') || length == 0 || length > LONGEST) return std::nullopt;
            if (!find(word, length, later, found)) ask(word, length, later, found);
            if (at == end) return found;
            ++at;
        }
    }

  private:
    static constexpr size_t LONGEST = 40, NEAR = 64;

    struct Slot {
        uint32_t hash = 0, text = 0, ids = 0;
        uint8_t length = 0, count = 0;  // of the word, 0 in a free slot, and of its ids
        bool later = false;
    };
    struct Generation {
        std::vector<Slot> slots;
        std::vector<uint8_t> text;
        std::vector<int32_t> ids;
        size_t size = 0;
    };

    static size_t power_of_two(size_t least) {  // from `least` on
        size_t size = 1;
        while (size < least) size *= 2;
        return size;
    }

    static uint32_t hash_of(const uint8_t *word, size_t length, bool later) {  // FNV-1a
        uint32_t hash = later ? 2166136261u : 1966136261u;
        for (size_t i = 0; i < length; ++i) hash = (hash ^ word[i]) * 16777619u;
        return hash ^ hash >> 15;
    }

    // The slot of a word in a generation, or the free one where it would stand; none where too many others, perhaps made
    // for it, have hashes like its own.
    static Slot *slot_of(Generation &among, const uint8_t *word, size_t length, bool later, uint32_t hash) {
        const size_t mask = among.slots.size() - 1;
        for (size_t step = 0; step < NEAR; ++step) {
            Slot &slot = among.slots[(hash + step) & mask];
            if (slot.length == 0 || (slot.hash == hash && slot.length == length && slot.later == later &&
                                     std::equal(word, word + length, among.text.data() + slot.text)))
                return &slot;
        }
        return nullptr;
    }

    bool find(const uint8_t *word, size_t length, bool later, std::vector<int32_t> &found) {
        const uint32_t hash = hash_of(word, length, later);
        for (Generation &among : generations_) {
            const Slot *slot = slot_of(among, word, length, later, hash);
            if (!slot || slot->length == 0) continue;
            const auto first = among.ids.begin() + slot->ids;
            const auto before = static_cast<std::ptrdiff_t>(found.size());
            found.insert(found.end(), first, first + slot->count);
            if (&among != &generations_[0]) add(word, length, later, found.data() + before, found.size() - before);
            return true;
        }
        return false;
    }

    void ask(const uint8_t *word, size_t length, bool later, std::vector<int32_t> &found) {
        std::string text(later ? " " : "");
        for (size_t i = 0; i < length; ++i) {  // Latin-1 to UTF-8
            if (word[i] >= 0x80) text += static_cast<char>(0xC0 | word[i] >> 6);
            text += static_cast<char>(word[i] >= 0x80 ? 0x80 | (word[i] & 0x3F) : word[i]);
        }
        const auto ids = encode_(text).cast<std::vector<int32_t>>();
        found.insert(found.end(), ids.begin(), ids.end());
        if (ids.size() <= 255) add(word, length, later, ids.data(), ids.size());
    }

    void add(const uint8_t *word, size_t length, bool later, const int32_t *ids, size_t count) {
        if (generations_[0].size == most_) {
            std::swap(generations_[0], generations_[1]);
            Generation &young = generations_[0];
            std::fill(young.slots.begin(), young.slots.end(), Slot{});
            young.text.clear();
            young.ids.clear();
            young.size = 0;
        }
        Generation &young = generations_[0];
        const uint32_t hash = hash_of(word, length, later);
        Slot *slot = slot_of(young, word, length, later, hash);
        if (!slot || slot->length != 0) return;
        *slot = {hash, static_cast<uint32_t>(young.text.size()), static_cast<uint32_t>(young.ids.size()),
                static_cast<uint8_t>(length), static_cast<uint8_t>(count), later};
        young.text.insert(young.text.end(), word, word + length);
        young.ids.insert(young.ids.end(), ids, ids + count);
        ++young.size;
    }

    py::function encode_;
    std::array<bool, 256> taken_;
    size_t most_;
    std::array<Generation, 2> generations_;
};

}  // namespace kernels
