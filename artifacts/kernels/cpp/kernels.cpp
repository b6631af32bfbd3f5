// The module artifacts.kernels.native: the arithmetic of a query that no library has. native.pyi documents its parts.
//
// Sums are taken in an order that depends on nothing but the numbers, so every processor gives the same bits; this needs
// -ffp-contract=off.

#include <cstdint>
#include <optional>
#include <string>

#include "arrays.hpp"
#include "counts.hpp"
#include "fusion.hpp"
#include "scores.hpp"
#include "table.hpp"
#include "weighted_terms.hpp"

PYBIND11_MODULE(native, module) {
    using namespace kernels;
    using namespace py::literals;
    module.attr("FLOOR") = FLOOR;
    module.def("count", &count, "ids"_a, py::arg("idf").noconvert());
    module.def("count_each", &count_each, py::arg("ids").noconvert(), py::arg("lengths").noconvert());
    py::class_<Table>(module, "Table")
        .def(py::init<py::array, std::optional<Array<float>>>(), "rows"_a, py::arg("scales").noconvert())
        .def("encode", &Table::encode, "ids"_a, py::arg("idf").noconvert())
        .def("direction", &Table::direction, py::arg("terms").noconvert(), py::arg("factors").noconvert())
        .def("directions", &Table::directions, py::arg("bounds").noconvert(), py::arg("terms").noconvert(),
             py::arg("factors").noconvert());
    module.def("weighted_terms", &weighted_terms, py::arg("terms").noconvert(), py::arg("weights").noconvert());
    module.def("magnitude", &magnitude, py::arg("numbers").noconvert());
    module.def("extremes", &extremes<int32_t>, py::arg("numbers").noconvert());
    module.def("extremes", &extremes<int64_t>, py::arg("numbers").noconvert());
    module.def("best_first", &best_first, py::arg("ordinals").noconvert(), py::arg("scores").noconvert(), "count"_a);
    module.def("align", &align, "legs"_a);
    module.def("unknown", &unknown, py::arg("ordinals").noconvert(), py::arg("scores").noconvert());
    module.def("fill", &fill, py::arg("scores").noconvert(), "numbers"_a);
    module.def("fuse", &fuse, py::arg("scores").noconvert(), py::arg("ranks").noconvert(), "weights"_a, "by"_a,
               "constant"_a);
}
