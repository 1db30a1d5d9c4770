// Records as the rows of a store: the JSON of engine/storage/row_codec.py, for most records, in symbols.
#include "python.hpp"

#include "symbols.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fanrank::python {

namespace {

// CRC-32 of zlib, eight bytes at a time.
constexpr auto crc_tables = [] {
    std::array<std::array<std::uint32_t, 256>, 8> made{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t value = byte;
        for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0xEDB88320u : 0u);
        made[0][byte] = value;
    }
    for (std::size_t table = 1; table < 8; ++table) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t before = made[table - 1][byte];
            made[table][byte] = (before >> 8) ^ made[0][before & 255];
        }
    }
    return made;
}();

std::uint32_t crc32(std::string_view text, std::uint32_t value) {
    value = ~value;
    const auto* at = reinterpret_cast<const unsigned char*>(text.data());
    std::size_t left = text.size();
    for (; left >= 8; left -= 8, at += 8) {
        const auto& tables = crc_tables;
        value ^= static_cast<std::uint32_t>(at[0]) | static_cast<std::uint32_t>(at[1]) << 8 |
                 static_cast<std::uint32_t>(at[2]) << 16 | static_cast<std::uint32_t>(at[3]) << 24;
        value = tables[7][value & 255] ^ tables[6][(value >> 8) & 255] ^ tables[5][(value >> 16) & 255] ^
                tables[4][value >> 24] ^ tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^ tables[0][at[7]];
    }
    for (; left > 0; --left, ++at) value = (value >> 8) ^ crc_tables[0][(value ^ *at) & 255];
    return ~value;
}

// A record that the loops do not know: Python encodes it, or says by which error it is refused.
struct Unknown {};

std::string_view utf8_of(PyObject* text) {
    if (!PyUnicode_Check(text)) throw Unknown();
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(text, &size);
    if (data == nullptr) {
        PyErr_Clear();
        throw Unknown();
    }
    return {data, static_cast<std::size_t>(size)};
}

// As `json.encoder.encode_basestring`.
void put_string(std::string& to, PyObject* text) {
    const std::string_view bytes = utf8_of(text);
    to += '"';
    std::size_t done = 0;
    for (std::size_t place = 0; place < bytes.size(); ++place) {
        const auto byte = static_cast<unsigned char>(bytes[place]);
        if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
        to.append(bytes, done, place - done);
        done = place + 1;
        const std::string_view from = "\"\\\n\r\t\f\b", escaped = "\"\\nrtfb";
        to += '\\';
        if (const auto found = from.find(static_cast<char>(byte)); found != from.npos) {
            to += escaped[found];
        } else {
            to += "u00";
            to += "0123456789abcdef"[byte >> 4];
            to += "0123456789abcdef"[byte & 15];
        }
    }
    to.append(bytes, done, bytes.size() - done);
    to += '"';
}

void put_float(std::string& to, PyObject* number) {
    if (!PyFloat_CheckExact(number) || !std::isfinite(PyFloat_AsDouble(number))) throw Unknown();
    const std::unique_ptr<char, decltype(&PyMem_Free)> text(
        PyOS_double_to_string(PyFloat_AsDouble(number), 'r', 0, Py_DTSF_ADD_DOT_0, nullptr), PyMem_Free);
    if (text == nullptr) throw PythonError();
    to += text.get();
}

// Objects and lists within each other that are written here.
constexpr int DEPTH = 32;

void put_value(std::string& to, PyObject* value, int depth);

// An object that JSON gives back as it was: its keys are strings.
void put_object(std::string& to, PyObject* object, int depth = 0) {
    if (!PyDict_CheckExact(object) || depth == DEPTH) throw Unknown();
    to += '{';
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t place = 0;
    bool first = true;
    while (PyDict_Next(object, &place, &key, &value)) {
        if (!PyUnicode_CheckExact(key)) throw Unknown();
        if (!std::exchange(first, false)) to += ',';
        put_string(to, key);
        to += ':';
        put_value(to, value, depth + 1);
    }
    to += '}';
}

void put_value(std::string& to, PyObject* value, int depth) {
    if (PyUnicode_CheckExact(value)) {
        put_string(to, value);
    } else if (PyLong_CheckExact(value)) {
        int overflow = 0;
        const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow != 0) throw Unknown();
        char digits[24];
        to.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
    } else if (value == Py_None || value == Py_True || value == Py_False) {
        to += value == Py_None ? "null" : value == Py_True ? "true" : "false";
    } else if (PyFloat_CheckExact(value)) {
        put_float(to, value);
    } else if (PyList_CheckExact(value) && depth < DEPTH) {
        to += '[';
        for (Py_ssize_t place = 0; place < PyList_Size(value); ++place) {
            if (place > 0) to += ',';
            put_value(to, PyList_GetItem(value, place), depth + 1);
        }
        to += ']';
    } else {
        put_object(to, value, depth);
    }
}

constexpr std::array OTHERS = {"embedding", "passages", "weights", "entities", "relations"};

class Encoder {
public:
    // `type` is the tuple that a row becomes, of (id, checksum, data, vectors, version).
    Encoder(PyObject* type, PyObject* plain, PyObject* with_payload, PyObject* strings, PyObject* numbers)
        : type_(type), plain_(plain), with_payload_(with_payload), strings_(names_in(strings)),
          numbers_(names_in(numbers)) {
        if (!PyType_Check(type) || !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type), &PyTuple_Type)) {
            throw std::invalid_argument("a type of tuples is expected");
        }
        make_ = reinterpret_cast<newfunc>(PyType_GetSlot(&PyTuple_Type, Py_tp_new));
        for (std::size_t at = 0; at < names_.size(); ++at) names_[at] = checked(PyUnicode_InternFromString(NAMES[at]));
        for (std::size_t at = 0; at < OTHERS.size(); ++at) others_[at] = checked(PyUnicode_InternFromString(OTHERS[at]));
    }

    // The row of a record, whose `extra` also has the number of its write (null: none). Throws `Unknown`.
    Ref encode(PyObject* record, PyObject* order) {
        for (const Ref& name : others_) {
            if (value_of(record, name).get() != Py_None) throw Unknown();
        }
        const Ref text = value_of(record, names_[0]), id = value_of(record, names_[1]);
        const Ref space = value_of(record, names_[2]);
        data_ = "{\"text\":";
        put_string(data_, text.get());
        std::size_t at = 3;
        for (const Ref& name : strings_) {
            if (const Ref value = value_of(record, name); value.get() != Py_None) put_string(begin(name), value.get());
        }
        for (const Ref& name : numbers_) {
            if (const Ref value = value_of(record, name); value.get() != Py_None) put_float(begin(name), value.get());
        }
        for (const char* name : {"fields", "extra"}) {
            const Ref value = value_of(record, names_[at++]);
            if (!PyDict_CheckExact(value.get())) throw Unknown();
            const bool ordered = order != nullptr && name[0] == 'e';
            if (PyDict_Size(value.get()) > 0) {
                put_object(begin(name), value.get());
                if (ordered) data_.back() = ',';
            } else if (ordered) {
                begin(name) += '{';
            }
            if (ordered) {
                data_ += "\"fanrank_order\":";
                put_value(data_, order, 0);
                data_ += '}';
            }
        }
        const Ref payload = value_of(record, names_[at++]), expires = value_of(record, names_[at]);
        if (payload.get() != Py_None) put_object(begin("payload"), payload.get());
        if (expires.get() != Py_None) put_float(begin("expires"), expires.get());
        data_ += '}';
        std::uint32_t checksum = crc32(utf8_of(space.get()), 0);
        checksum = crc32(std::string_view("\0", 1), checksum);
        checksum = crc32(data_, crc32(utf8_of(id.get()), checksum));
        const bool plain = payload.get() == Py_None && expires.get() == Py_None;
        const Ref number = checked(PyLong_FromUnsignedLong(checksum));
        const Ref data = checked(PyUnicode_FromStringAndSize(data_.data(), static_cast<Py_ssize_t>(data_.size())));
        const Ref row =
            checked(PyTuple_Pack(5, id.get(), number.get(), data.get(), Py_None, plain ? plain_ : with_payload_));
        const Ref given = checked(PyTuple_Pack(1, row.get()));
        return checked(make_(reinterpret_cast<PyTypeObject*>(type_), given.get(), nullptr));
    }

private:
    static constexpr std::array NAMES = {"text", "id", "namespace", "fields", "extra", "payload", "expires"};

    static std::vector<Ref> names_in(PyObject* names) {
        if (!PyTuple_Check(names)) throw std::invalid_argument("a tuple of names is expected");
        std::vector<Ref> held;
        for (Py_ssize_t at = 0; at < PyTuple_Size(names); ++at) held.push_back(Ref::borrow(PyTuple_GetItem(names, at)));
        return held;
    }

    static Ref value_of(PyObject* record, const Ref& name) { return checked(PyObject_GetAttr(record, name.get())); }

    std::string& begin(const Ref& name) { return begin(utf8_of(name.get())); }

    std::string& begin(std::string_view name) {
        data_ += ",\"";
        data_ += name;
        data_ += "\":";
        return data_;
    }

    PyObject *type_, *plain_, *with_payload_;
    std::vector<Ref> strings_, numbers_;
    newfunc make_;
    std::array<Ref, NAMES.size()> names_;
    std::array<Ref, OTHERS.size()> others_;
    std::string data_;
};

// encode_rows(records, encode, type, plain, with_payload, orders, strings, numbers): the rows of a list of records.
// `encode` makes those that the loops do not know; `plain` and `with_payload` are the formats of the others. `orders` is
// None, or a list of the numbers of their writes. `strings` and `numbers` name the fields that may hold one.
PyObject* encode_rows(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 8, "encode_rows");
        Encoder encoder(arguments[2], arguments[3], arguments[4], arguments[6], arguments[7]);
        if (!PyList_Check(arguments[0])) throw std::invalid_argument("a list of records is expected");
        const bool ordered = arguments[5] != Py_None;
        if (ordered && (!PyList_Check(arguments[5]) || PyList_Size(arguments[5]) != PyList_Size(arguments[0]))) {
            throw std::invalid_argument("a number for each record is expected");
        }
        Ref rows = checked(PyList_New(0));
        // The list may change while `encode` runs.
        for (Py_ssize_t place = 0; place < PyList_Size(arguments[0]); ++place) {
            const Ref record = Ref::borrow(PyList_GetItem(arguments[0], place));
            PyObject* found = ordered ? PyList_GetItem(arguments[5], place) : nullptr;
            if (ordered && found == nullptr) throw PythonError();
            const Ref order = ordered ? Ref::borrow(found) : Ref();
            Ref row;
            try {
                row = encoder.encode(record.get(), order.get());
            } catch (const Unknown&) {
                row = checked(PyObject_CallFunctionObjArgs(arguments[1], record.get(), order.get(), nullptr));
            }
            if (PyList_Append(rows.get(), row.get()) != 0) throw PythonError();
        }
        return rows.release();
    });
}

// Symbols with the byte that packed rows begin with.
struct HeldSymbols {
    Symbols symbols;
    char number;
};

PyTypeObject* symbols_type = nullptr;

Ref bytes_of(const std::string& data) {
    return checked(PyBytes_FromStringAndSize(data.data(), static_cast<Py_ssize_t>(data.size())));
}

std::string_view view_of(PyObject* bytes) {
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(bytes, &data, &size) != 0) throw PythonError();
    return {data, static_cast<std::size_t>(size)};
}

// pack(rows): each as bytes, or as it is where it would not become shorter.
PyObject* pack(PyObject* self, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 1, "pack");
        if (!PyList_Check(arguments[0])) throw std::invalid_argument("a list of rows is expected");
        const HeldSymbols& table = held<HeldSymbols>(self);
        Ref packed = checked(PyList_New(0));
        std::string data;
        for (Py_ssize_t place = 0; place < PyList_Size(arguments[0]); ++place) {
            const Ref row = Ref::borrow(PyList_GetItem(arguments[0], place));
            const std::string_view text = utf8_of(row.get());
            data.assign(1, table.number);
            table.symbols.pack(text, data);
            const Ref made = data.size() < text.size() ? bytes_of(data) : Ref::borrow(row.get());
            if (PyList_Append(packed.get(), made.get()) != 0) throw PythonError();
        }
        return packed.release();
    });
}

// unpack(data): the row in UTF-8. Raises `ValueError` for what `pack` did not make.
PyObject* unpack(PyObject* self, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 1, "unpack");
        std::string row;
        const std::string_view data = view_of(arguments[0]);
        if (data.empty() || !held<HeldSymbols>(self).symbols.unpack(data.substr(1), row)) {
            throw std::invalid_argument("not a row in these symbols");
        }
        return bytes_of(row).release();
    });
}

// symbols(number, runs): the table of these runs, each a byte with its length and then the run.
PyObject* make_symbols(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 2, "symbols");
        std::string_view stored = view_of(arguments[1]);
        std::vector<std::string> runs;
        while (!stored.empty()) {
            const auto size = static_cast<unsigned char>(stored[0]);
            if (size >= stored.size()) throw std::invalid_argument("a run is cut off");
            runs.emplace_back(stored.substr(1, size));
            stored.remove_prefix(1u + size);
        }
        const auto number = static_cast<char>(to_int(arguments[0]));
        return wrap<HeldSymbols>(symbols_type, [&] { return new HeldSymbols{Symbols(std::move(runs)), number}; });
    });
}

// learn_symbols(rows): the runs of a table for rows like these, as `symbols` takes them.
PyObject* learn_symbols(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 1, "learn_symbols");
        if (!PyList_Check(arguments[0])) throw std::invalid_argument("a list of rows is expected");
        std::vector<std::string_view> rows;
        for (Py_ssize_t place = 0; place < PyList_Size(arguments[0]); ++place) {
            rows.push_back(utf8_of(PyList_GetItem(arguments[0], place)));
        }
        std::string stored;
        const Symbols learned = Symbols::learn(rows);
        for (const std::string& run : learned.runs()) {
            stored += static_cast<char>(run.size());
            stored += run;
        }
        return bytes_of(stored).release();
    });
}

PyMethodDef symbols_methods[] = {
    method("pack", pack, "Rows in these symbols, where they become shorter."),
    method("unpack", unpack, "A row that was packed, in UTF-8."),
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef functions[] = {
    method("encode_rows", encode_rows, "The rows of a store for a list of records."),
    method("symbols", make_symbols, "The symbols of a table."),
    method("learn_symbols", learn_symbols, "The runs that make rows like these short."),
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot symbols_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(drop<HeldSymbols>)},
    {Py_tp_methods, symbols_methods},
    {0, nullptr},
};

PyType_Spec symbols_spec = {
    "fanrank.native._compiled.Symbols", sizeof(Holder<HeldSymbols>), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, symbols_slots,
};

}  // namespace

int add_rows(PyObject* module) {
    PyObject* type = PyType_FromSpec(&symbols_spec);
    if (type == nullptr) return -1;
    symbols_type = reinterpret_cast<PyTypeObject*>(type);
    if (PyModule_AddObjectRef(module, "Symbols", type) != 0) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace fanrank::python
