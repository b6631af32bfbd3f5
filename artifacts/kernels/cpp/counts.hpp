// Token ids, counted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "arrays.hpp"

namespace kernels {

// Counts of one query's ids, which are sorted on the way; `found(term, count)` is called for each, ascending.
template <typename Found> void count_sorted(int32_t *ids, size_t size, Found found) {
    std::sort(ids, ids + size);
    for (size_t first = 0, last; first < size; first = last) {
        for (last = first + 1; last < size && ids[last] == ids[first];) ++last;
        found(ids[first], static_cast<int64_t>(last - first));
    }
}

inline py::tuple count_each(const Array<int32_t> &ids, const Array<int64_t> &lengths) {
    std::vector<int32_t> sorted(ids.data(), ids.data() + ids.size()), terms;
    std::vector<int64_t> counts, bounds{0};
    int64_t start = 0;
    for (py::ssize_t i = 0; i < lengths.size(); ++i) {
        const int64_t size = lengths.data()[i];
        require(size >= 0 && size <= ids.size() - start, "the lengths don't fit the number of ids");
        count_sorted(sorted.data() + start, static_cast<size_t>(size), [&](int32_t term, int64_t count) {
            terms.push_back(term);
            counts.push_back(count);
        });
        bounds.push_back(static_cast<int64_t>(terms.size()));
        start += size;
    }
    require(start == ids.size(), "the lengths don't fit the number of ids");
    return py::make_tuple(array_of(bounds), array_of(terms), array_of(counts));
}

// One query's different ids, ascending, how often each occurs, as factors too, and times its IDF.
struct Counted {
    Array<int32_t> terms;
    Array<int64_t> counts;
    Array<float> factors, weights;

    Counted(const py::list &ids, const std::optional<Array<float>> &idf) {
        std::vector<int32_t> sorted(ids.size()), different(ids.size());
        std::vector<int64_t> number(ids.size());
        for (size_t i = 0; i < sorted.size(); ++i) {
            PyObject *const item = PyList_GET_ITEM(ids.ptr(), static_cast<py::ssize_t>(i));
            // Anything else could run code of its own to become one, and change the list meanwhile.
            if (!PyLong_Check(item)) throw py::type_error("a token id is no int");
            const long id = PyLong_AsLong(item);
            if (id == -1 && PyErr_Occurred()) throw py::error_already_set();
            require(id >= 0 && id <= std::numeric_limits<int32_t>::max(), "token id ", id, " is none");
            sorted[i] = static_cast<int32_t>(id);
        }
        size_t size = 0;
        count_sorted(sorted.data(), sorted.size(), [&](int32_t term, int64_t count) {
            different[size] = term;
            number[size++] = count;
        });
        terms = array_of(different.data(), size);
        counts = array_of(number.data(), size);
        factors = Array<float>(static_cast<py::ssize_t>(size));
        std::copy(number.data(), number.data() + size, factors.mutable_data());
        weights = factors;
        if (!idf) return;
        require(size == 0 || different[size - 1] < idf->size(), "a token id has no IDF");
        weights = Array<float>(static_cast<py::ssize_t>(size));
        float *weight = weights.mutable_data();
        for (size_t i = 0; i < size; ++i) weight[i] = static_cast<float>(number[i]) * idf->data()[different[i]];
    }
};

inline py::tuple count(const py::list &ids, const std::optional<Array<float>> &idf) {
    const Counted counted(ids, idf);
    return py::make_tuple(counted.terms, counted.counts, counted.factors, counted.weights);
}

}  // namespace kernels
