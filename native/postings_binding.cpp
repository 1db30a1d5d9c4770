// Python's view of postings.hpp.
#include "python.hpp"

namespace fanrank::python {

int add_postings(PyObject*) { return 0; }

}  // namespace fanrank::python
