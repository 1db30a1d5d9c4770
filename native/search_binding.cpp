// Python's view of search.hpp.
#include "python.hpp"

namespace fanrank::python {

int add_search(PyObject*) { return 0; }

}  // namespace fanrank::python
