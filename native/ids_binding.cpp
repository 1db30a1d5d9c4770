// Python's view of record ids: document numbers in, strings out; and the hashes of ids.
#include "python.hpp"

#include "blake2b.hpp"

#include <algorithm>
#include <memory>
#include <vector>

namespace fanrank::python {

namespace {

// The ids of one segment: id n is block[offsets[n]:offsets[n + 1]], in UTF-8.
struct Column {
    Array<const std::uint8_t> block;
    Array<const std::int64_t> offsets;
    std::int64_t first = 0;

    std::int64_t size() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
};

struct HeldIds {
    std::vector<Column> columns;  // in the order of their documents
    std::int64_t size = 0;
};

PyTypeObject* ids_type = nullptr;

// The objects of a numpy array of objects.
class Objects {
public:
    explicit Objects(PyObject* array) {
        if (PyObject_GetBuffer(array, &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE) != 0) {
            throw PythonError();
        }
        if (view_.format == nullptr || std::string(view_.format) != "O" || view_.itemsize != sizeof(PyObject*)) {
            PyBuffer_Release(&view_);
            throw std::invalid_argument("ids: an array of objects is expected");
        }
    }
    Objects(const Objects&) = delete;
    Objects& operator=(const Objects&) = delete;
    ~Objects() { PyBuffer_Release(&view_); }

    std::size_t size() const { return static_cast<std::size_t>(view_.len) / sizeof(PyObject*); }
    void set(std::size_t place, Ref object) const {
        PyObject** slot = static_cast<PyObject**>(view_.buf) + place;
        Ref before(std::exchange(*slot, object.release()));
    }

private:
    Py_buffer view_{};
};

Ref id_of(const HeldIds& ids, std::int64_t document) {
    if (document == -1) return Ref::borrow(Py_None);
    if (document < -1 || document >= ids.size) throw std::invalid_argument("there is no document of this number");
    const auto after = std::upper_bound(ids.columns.begin(), ids.columns.end(), document,
                                        [](std::int64_t number, const Column& one) { return number < one.first; });
    const Column& column = *(after - 1);
    const auto position = static_cast<std::size_t>(document - column.first);
    const std::int64_t start = column.offsets[position], end = column.offsets[position + 1];
    if (start < 0 || end < start || end > static_cast<std::int64_t>(column.block.size())) {
        throw std::invalid_argument("the offsets of ids lie outside their block");
    }
    const auto* text = reinterpret_cast<const char*>(column.block.data() + start);
    return checked(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(end - start), "strict"));
}

// fill(documents, ids): `ids` is an array of objects with as many places as there are documents.
PyObject* fill(PyObject* self, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 2, "fill");
        const Array<const std::int64_t> documents(arguments[0], "documents");
        const Objects ids(arguments[1]);
        if (ids.size() != documents.size()) throw std::invalid_argument("ids and documents have different sizes");
        for (std::size_t place = 0; place < documents.size(); ++place) {
            ids.set(place, id_of(held<HeldIds>(self), documents[place]));
        }
        return Ref::borrow(Py_None).release();
    });
}

// record_ids(columns): a tuple of (block, offsets), one for each segment.
PyObject* make_ids(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 1, "record_ids");
        return wrap<HeldIds>(ids_type, [&] {
            auto made = std::make_unique<HeldIds>();
            if (!PyTuple_Check(arguments[0])) throw std::invalid_argument("columns: a tuple is expected");
            const Py_ssize_t count = PyTuple_Size(arguments[0]);
            for (Py_ssize_t number = 0; number < count; ++number) {
                PyObject* pair = PyTuple_GetItem(arguments[0], number);
                if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
                    throw std::invalid_argument("columns: each is a block and its offsets");
                }
                Column column;
                column.block = Array<const std::uint8_t>(PyTuple_GetItem(pair, 0), "block");
                column.offsets = Array<const std::int64_t>(PyTuple_GetItem(pair, 1), "offsets");
                column.first = made->size;
                if (column.size() < 0) throw std::invalid_argument("a column has at least one offset");
                made->size += column.size();
                made->columns.push_back(std::move(column));
            }
            return made.release();
        });
    });
}

// hash_ids(ids, hashes): fills `hashes`. Raises `UnicodeEncodeError` for a lone surrogate.
PyObject* hash_ids(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 2, "hash_ids");
        const Array<std::uint64_t> hashes(arguments[1], "hashes");
        if (!PyList_Check(arguments[0]) || static_cast<std::size_t>(PyList_Size(arguments[0])) != hashes.size()) {
            throw std::invalid_argument("a list with an id for each hash is expected");
        }
        for (std::size_t place = 0; place < hashes.size(); ++place) {
            Py_ssize_t size = 0;
            const char* id = PyUnicode_AsUTF8AndSize(PyList_GetItem(arguments[0], static_cast<Py_ssize_t>(place)), &size);
            if (id == nullptr) throw PythonError();
            hashes[place] = Blake2b::hash({id, static_cast<std::size_t>(size)});
        }
        return Ref::borrow(Py_None).release();
    });
}

// hash_column(block, offsets, hashes): fills `hashes` with those of a column's ids.
PyObject* hash_column(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 3, "hash_column");
        const Array<const std::uint8_t> block(arguments[0], "block");
        const Array<const std::int64_t> offsets(arguments[1], "offsets");
        const Array<std::uint64_t> hashes(arguments[2], "hashes");
        if (offsets.size() != hashes.size() + 1) throw std::invalid_argument("a hash for each id is expected");
        {
            WithoutLock unlocked;
            for (std::size_t place = 0; place < hashes.size(); ++place) {
                const std::int64_t start = offsets[place], end = offsets[place + 1];
                if (start < 0 || end < start || end > static_cast<std::int64_t>(block.size())) {
                    throw std::invalid_argument("the offsets of ids lie outside their block");
                }
                const auto* text = reinterpret_cast<const char*>(block.data() + start);
                hashes[place] = Blake2b::hash({text, static_cast<std::size_t>(end - start)});
            }
        }
        return Ref::borrow(Py_None).release();
    });
}

PyMethodDef ids_methods[] = {
    method("fill", fill, "Fills an array of objects with the ids of these documents; None for -1."),
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef functions[] = {
    method("record_ids", make_ids, "The ids of the documents of several segments."),
    method("hash_ids", hash_ids, "Fills an array with the hashes of these ids."),
    method("hash_column", hash_column, "Fills an array with the hashes of the ids of a segment."),
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot ids_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(drop<HeldIds>)},
    {Py_tp_methods, ids_methods},
    {0, nullptr},
};

PyType_Spec ids_spec = {
    "fanrank.native._compiled.RecordIds", sizeof(Holder<HeldIds>), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, ids_slots,
};

}  // namespace

int add_ids(PyObject* module) {
    PyObject* type = PyType_FromSpec(&ids_spec);
    if (type == nullptr) return -1;
    ids_type = reinterpret_cast<PyTypeObject*>(type);
    if (PyModule_AddObjectRef(module, "RecordIds", type) != 0) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace fanrank::python
