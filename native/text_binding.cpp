// Python's view of text.hpp.
#include "python.hpp"

namespace fanrank::python {

int add_text(PyObject*) { return 0; }

}  // namespace fanrank::python
