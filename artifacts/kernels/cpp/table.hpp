// A token table: weighted sums of its rows.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "arrays.hpp"
#include "counts.hpp"

namespace kernels {

ALSO_FOR_AVX2 inline void add_floats(const float *row, float weight, size_t size, float *sum) {
    for (size_t i = 0; i < size; ++i) sum[i] += weight * row[i];
}

ALSO_FOR_AVX2 inline void add_bytes(const int8_t *row, float weight, size_t size, float *sum) {
    for (size_t i = 0; i < size; ++i) sum[i] += weight * static_cast<float>(row[i]);
}

// A finite float16 whose bits stand 13 places further left is a float32, but for the offset of its exponent, 2^112.
ALSO_FOR_AVX2 inline void add_halves(const int16_t *row, float weight, size_t size, float *sum) {
    for (size_t i = 0; i < size; ++i) {
        const int32_t bits = static_cast<int32_t>(static_cast<uint32_t>(static_cast<int32_t>(row[i])) << 13 & 0x8FFFE000u);
        float value;
        std::memcpy(&value, &bits, sizeof value);
        sum[i] += weight * (value * 0x1p112f);
    }
}

inline double length_of(const float *values, size_t size) {
    std::array<double, LANES> sums{};
    for (size_t i = 0; i < size; ++i) sums[i % LANES] += static_cast<double>(values[i]) * values[i];
    double total = 0;
    for (double sum : sums) total += sum;
    return std::sqrt(total);
}

class Table {
  public:
    Table(py::array rows, std::optional<Array<float>> scales) : rows_(std::move(rows)), scales_(std::move(scales)) {
        require(rows_.ndim() == 2 && (rows_.flags() & py::array::c_style), "a token table is a C array of shape (V, D)");
        require(rows_.dtype().byteorder() != '>', "a token table has the bytes of a number in this processor's order");
        kind_ = rows_.dtype().kind();
        width_ = static_cast<size_t>(rows_.itemsize());
        require((kind_ == 'f' && (width_ == 2 || width_ == 4)) || (kind_ == 'i' && width_ == 1),
                "a token table holds float16, float32 or int8");
        require((kind_ == 'i') == scales_.has_value(), "an int8 table, and no other, has scales");
        count_ = static_cast<size_t>(rows_.shape(0));
        size_ = static_cast<size_t>(rows_.shape(1));
        require(!scales_ || static_cast<size_t>(scales_->size()) == count_, "an int8 table has a scale for every row");
        first_ = static_cast<const char *>(rows_.data());
        scale_ = scales_ ? scales_->data() : nullptr;
    }

    py::tuple encode(const py::list &ids, const std::optional<Array<float>> &idf) const {
        const Counted counted(ids, idf);
        const auto [vector, length] = one(counted.terms, counted.factors);
        return py::make_tuple(counted.terms, counted.counts, counted.factors, counted.weights, vector, length);
    }

    py::tuple direction(const Array<int32_t> &terms, const Array<float> &factors) const {
        const auto [vector, length] = one(terms, factors);
        return py::make_tuple(vector, length);
    }

    py::tuple directions(const Array<int64_t> &bounds, const Array<int32_t> &terms, const Array<float> &factors) const {
        const py::ssize_t count = bounds.size() - 1;
        const int64_t *bound = bounds.data();
        require(count >= 0 && bound[0] == 0 && bound[count] == terms.size() && std::is_sorted(bound, bound + count + 1),
                "bounds ascend from 0 to the number of terms");
        check(terms, factors);
        Array<float> vectors({count, static_cast<py::ssize_t>(size_)});
        Array<double> lengths(count);
        float *vector = vectors.mutable_data();
        double *length = lengths.mutable_data();
        const int32_t *term = terms.data();
        const float *factor = factors.data();
        {
            py::gil_scoped_release other_threads;
            for (py::ssize_t i = 0; i < count; ++i)
                length[i] = sum(term + bound[i], factor + bound[i], static_cast<size_t>(bound[i + 1] - bound[i]),
                                vector + static_cast<size_t>(i) * size_);
        }
        return py::make_tuple(vectors, lengths);
    }

  private:
    std::pair<Array<float>, double> one(const Array<int32_t> &terms, const Array<float> &factors) const {
        check(terms, factors);
        Array<float> vector(static_cast<py::ssize_t>(size_));
        const double length =
            sum(terms.data(), factors.data(), static_cast<size_t>(terms.size()), vector.mutable_data());
        return {std::move(vector), length};
    }

    void check(const Array<int32_t> &terms, const Array<float> &factors) const {
        require(terms.size() == factors.size(), "every term needs a factor");
        for (py::ssize_t i = 0; i < terms.size(); ++i) {
            const int32_t term = terms.data()[i];
            require(term >= 0 && static_cast<size_t>(term) < count_, "token id ", term, " is outside the table's 0..",
                    count_ - 1);
        }
    }

    // The weighted sum of rows, cut to length 1; gives the length that it had.
    double sum(const int32_t *terms, const float *factors, size_t count, float *vector) const {
        std::fill(vector, vector + size_, 0.0f);
        for (size_t i = 0; i < count; ++i) {
            const auto term = static_cast<size_t>(terms[i]);
            const char *row = first_ + term * size_ * width_;
            if (kind_ == 'i')
                add_bytes(reinterpret_cast<const int8_t *>(row), factors[i] * scale_[term], size_, vector);
            else if (width_ == 2)
                add_halves(reinterpret_cast<const int16_t *>(row), factors[i], size_, vector);
            else
                add_floats(reinterpret_cast<const float *>(row), factors[i], size_, vector);
        }
        const double length = length_of(vector, size_);
        if (length > 0)
            for (size_t i = 0; i < size_; ++i) vector[i] = static_cast<float>(vector[i] / length);
        return length;
    }

    py::array rows_;
    std::optional<Array<float>> scales_;
    char kind_;
    size_t width_, count_, size_;
    const char *first_;
    const float *scale_;
};

}  // namespace kernels
