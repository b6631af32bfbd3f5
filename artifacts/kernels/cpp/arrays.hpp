// NumPy's arrays in C++, and what all parts share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

// Compiled for AVX2 as well, chosen when the program is loaded.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__)
#define ALSO_FOR_AVX2 __attribute__((target_clones("avx2", "default")))
#else
#define ALSO_FOR_AVX2
#endif

namespace py = pybind11;

namespace kernels {

template <typename T> using Array = py::array_t<T, py::array::c_style>;
template <typename T> using Converted = py::array_t<T, py::array::c_style | py::array::forcecast>;

// Partial sums, added up in one order, whatever the processor has.
constexpr size_t LANES = 16;

template <typename T> Array<T> array_of(const T *values, size_t size) {
    Array<T> made(static_cast<py::ssize_t>(size));  // given the values, pybind11 would make two
    if (size) std::memcpy(made.mutable_data(), values, size * sizeof(T));
    return made;
}

template <typename T> Array<T> array_of(const std::vector<T> &values) { return array_of(values.data(), values.size()); }

// A ValueError unless something holds. The parts of its message are put together only then.
template <typename... Parts> void require(bool holds, const Parts &...otherwise) {
    if (holds) return;
    std::ostringstream message;
    (message << ... << otherwise);
    throw py::value_error(message.str());
}

}  // namespace kernels
