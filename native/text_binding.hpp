#pragma once
#include <cstdint>
#include <vector>
#include "python.hpp"
namespace fanrank::python {
struct Encoded { std::vector<std::int32_t> terms; std::vector<std::int64_t> offsets; };
inline Encoded encode_queries(PyObject*, PyObject*) { throw std::runtime_error("not yet"); }
}
