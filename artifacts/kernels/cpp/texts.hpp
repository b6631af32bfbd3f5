// Texts as PlainDocuments.java writes them, read.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"

namespace kernels {

class Texts {
  public:
    Texts(Array<uint8_t> file, int64_t count) : file_(std::move(file)), data_(file_.data()), count_(count) {
        const int64_t end = file_.size() - FOOTER - 8;
        table_ = end < 0 ? -1 : load<int64_t>(data_ + end);
        require(count >= 0 && table_ >= 0 && table_ <= end && (end - table_) % 8 == 0 && (end - table_) / 8 == count + 1,
                DAMAGED);
    }

    py::list read(const Array<int64_t> &ordinals) const {
        std::vector<std::string> found(static_cast<size_t>(ordinals.size()));
        {
            py::gil_scoped_release other_threads;  // what is not in memory is read from the disk now
            for (size_t i = 0; i < found.size(); ++i) found[i] = text(ordinals.data()[i]);
        }
        py::list texts(found.size());
        for (size_t i = 0; i < found.size(); ++i) texts[i] = py::bytes(found[i]);
        return texts;
    }

  private:
    std::string text(int64_t ordinal) const {
        require(ordinal >= 0 && ordinal < count_, "document ", ordinal, " is none");
        const auto start = load<int64_t>(data_ + table_ + 8 * ordinal);
        const auto end = load<int64_t>(data_ + table_ + 8 * (ordinal + 1));
        require(0 <= start && start <= end && end <= table_, DAMAGED);
        return {reinterpret_cast<const char *>(data_ + start), static_cast<size_t>(end - start)};
    }

    static constexpr int64_t FOOTER = 16;
    static constexpr const char *DAMAGED = "the file of documents is damaged";

    Array<uint8_t> file_;
    const uint8_t *data_;
    int64_t count_, table_;
};

}  // namespace kernels
