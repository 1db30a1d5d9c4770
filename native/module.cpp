// The extension module `fanrank.native._compiled`: it joins what the binding files add.
#include "python.hpp"

namespace {

using namespace fanrank::python;

int fill(PyObject* module) {
    for (auto add : {add_text, add_postings, add_search, add_ids, add_rows}) {
        if (add(module) != 0) return -1;
    }
    return 0;
}

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(fill)},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "fanrank.native._compiled", "Loops in C++.", 0, nullptr, slots, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__compiled() { return PyModuleDef_Init(&definition); }
