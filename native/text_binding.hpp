// What other bindings may ask of the analysis of texts. Include it after python.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "python.hpp"

namespace fanrank::python {

// The ids of the terms of several texts, in order and with repeats: those of text i are
// ``terms[offsets[i]:offsets[i + 1]]``.
struct Encoded {
    std::vector<std::int32_t> terms;
    std::vector<std::int64_t> offsets;
};

// The ids of the terms of `texts`, a list or tuple of str. Unknown terms are left out. `analysis` is an object of
// `_compiled.Analysis`. The caller holds the interpreter's lock; it is released while much text is read. Throws
// `PythonError` for an item that is no str, among others.
Encoded encode_queries(PyObject* analysis, PyObject* texts);

}  // namespace fanrank::python
