// Python's view of text.hpp.
#include "text_binding.hpp"

#include <algorithm>
#include <bit>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "text.hpp"
#include "text_names.hpp"

namespace fanrank::python {

namespace {

using text::Analysis;

// A call with more bytes of text releases the interpreter's lock. To release it and to take it again costs nothing
// where no thread waits for it, and up to the switch interval (5 ms) where one does.
constexpr std::size_t much_text = 1 << 16;

// `str.isascii`. The stable ABI has no other way to ask this without making a copy.
PyCFunction is_ascii_method = nullptr;

bool is_ascii(PyObject* string) {
#ifdef Py_LIMITED_API
    Ref answer = checked(is_ascii_method(string, nullptr));
    return answer.get() == Py_True;
#else
    return PyUnicode_IS_ASCII(string);
#endif
}

// The items of a list or tuple of str, in UTF-8. A lone surrogate is a question mark. Escapes of a terminal may be removed.
class Texts {
public:
    explicit Texts(PyObject* sequence, bool removes_escapes = false)
        : removes_escapes_(removes_escapes), items_(checked(PySequence_Tuple(sequence))) {
        Py_ssize_t count = PyTuple_Size(items_.get());
        views_.reserve(static_cast<std::size_t>(count));
        for (Py_ssize_t i = 0; i < count; ++i) add(PyTuple_GetItem(items_.get(), i), i);
    }

    std::span<const std::string_view> views() const { return views_; }
    std::size_t bytes() const { return bytes_; }

private:
    void add(PyObject* item, Py_ssize_t position) {
        if (!PyUnicode_Check(item)) {
            Ref type = checked(PyObject_Str(reinterpret_cast<PyObject*>(Py_TYPE(item))));
            PyErr_Format(PyExc_TypeError, "text %zd is no string but of %U", position, type.get());
            throw PythonError();
        }
        const char* bytes;
        Py_ssize_t size;
        if (is_ascii(item)) {
            bytes = PyUnicode_AsUTF8AndSize(item, &size);
            if (bytes == nullptr) throw PythonError();
        } else {
            // Not `PyUnicode_AsUTF8AndSize`: a string beyond ASCII would keep its UTF-8 as long as it lives.
            encoded_.push_back(checked(PyUnicode_AsEncodedString(item, "utf-8", "replace")));
            char* start;
            if (PyBytes_AsStringAndSize(encoded_.back().get(), &start, &size) != 0) throw PythonError();
            bytes = start;
        }
        std::string_view text(bytes, static_cast<std::size_t>(size));
        if (removes_escapes_ && text.find('\x1b') != std::string_view::npos) {
            cleaned_.push_back(text::remove_escapes(text));
            text = cleaned_.back();
        }
        views_.push_back(text);
        bytes_ += text.size();
    }

    bool removes_escapes_;
    Ref items_;
    std::vector<Ref> encoded_;
    std::deque<std::string> cleaned_;
    std::vector<std::string_view> views_;
    std::size_t bytes_ = 0;
};

// What an object of `_compiled.Analysis` holds.
struct Analyser {
    Analyser(PyObject* own, text::Recipe recipe, const text::Sizes& sizes)
        : analyzer(Ref::borrow(own)), analysis(std::move(recipe), sizes) {}

    // The terms of a chunk that is not all ASCII.
    Texts terms_of(std::string_view chunk) const {
        Ref argument = checked(PyUnicode_DecodeUTF8(chunk.data(), static_cast<Py_ssize_t>(chunk.size()), nullptr));
        Ref terms = checked(PyObject_CallFunctionObjArgs(analyzer.get(), argument.get(), nullptr));
        return Texts(terms.get());
    }

    Ref analyzer;
    Analysis analysis;
};

Analyser& analyser_of(PyObject* object) {
    // Only our own type has this function.
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) != reinterpret_cast<void*>(drop<Analyser>)) {
        PyErr_SetString(PyExc_TypeError, "an Analysis is needed");
        throw PythonError();
    }
    return held<Analyser>(object);
}

std::string_view string_of(PyObject* object) {
    Py_ssize_t size;
    const char* bytes = PyUnicode_AsUTF8AndSize(object, &size);
    if (bytes == nullptr) throw PythonError();
    return {bytes, static_cast<std::size_t>(size)};
}

text::Stem kind_of(PyObject* object) {
    std::string_view name = string_of(object);
    if (name == "none") return text::Stem::none;
    if (name == "step_one") return text::Stem::step_one;
    if (name == "nltk") return text::Stem::nltk;
    if (name == "martin") return text::Stem::martin;
    throw std::invalid_argument("no way to stem is called " + std::string(name));
}

template <class Number>
Ref bytes_of(const std::vector<Number>& numbers) {
    return checked(PyByteArray_FromStringAndSize(reinterpret_cast<const char*>(numbers.data()),
                                                 static_cast<Py_ssize_t>(numbers.size() * sizeof(Number))));
}

PyObject* make(PyTypeObject* type, PyObject* positional, PyObject* named) {
    return guarded([&]() -> PyObject* {
        const char* names[] = {"analyzer", "stem",  "numbers",   "stop_words", "slots",
                               "room",     "block", "share",     "spellings",  "multiplier",
                               "names",    nullptr};
        PyObject *analyzer, *stem, *stop_words;
        int numbers, keeps_names = 0;
        text::Sizes sizes;
        auto slots = static_cast<Py_ssize_t>(sizes.slots), room = static_cast<Py_ssize_t>(sizes.room);
        auto block = static_cast<Py_ssize_t>(sizes.block), share = static_cast<Py_ssize_t>(sizes.share);
        auto spellings = static_cast<Py_ssize_t>(sizes.spellings);
        unsigned long long multiplier = 0;
        if (!PyArg_ParseTupleAndKeywords(positional, named, "OOpO|$nnnnnKp", const_cast<char**>(names), &analyzer, &stem,
                                         &numbers, &stop_words, &slots, &room, &block, &share, &spellings,
                                         &multiplier, &keeps_names)) {
            throw PythonError();
        }
        if (slots < 2 || (slots & (slots - 1)) != 0 || room < 1 || block < 1 || share < 1 || spellings < 0) {
            throw std::invalid_argument("slots must be a power of two, and no size may be below 1");
        }
        sizes = {static_cast<std::size_t>(slots), static_cast<std::size_t>(room),      static_cast<std::size_t>(block),
                 static_cast<std::size_t>(share), static_cast<std::size_t>(spellings), multiplier};
        text::Recipe recipe{kind_of(stem), numbers != 0, keeps_names != 0, {}};
        Texts words(stop_words);
        for (std::string_view word : words.views()) recipe.stop_words.emplace_back(word);
        return wrap<Analyser>(type, [&] { return new Analyser(analyzer, std::move(recipe), sizes); });
    });
}

Py_ssize_t size(PyObject* self) { return static_cast<Py_ssize_t>(held<Analyser>(self).analysis.size()); }

PyObject* find(PyObject* self, PyObject* const* values, Py_ssize_t given) {
    return guarded([&] {
        Arguments arguments(values, given, 1, "find");
        std::int32_t id = held<Analyser>(self).analysis.find(string_of(arguments[0]));
        return PyLong_FromLong(id == text::unknown ? -1 : id);
    });
}

PyObject* spellings(PyObject* self, PyObject* const* values, Py_ssize_t given) {
    return guarded([&] {
        Arguments arguments(values, given, 0, "spellings");
        return PyLong_FromSize_t(held<Analyser>(self).analysis.spellings());
    });
}

PyObject* add_terms(PyObject* self, PyObject* const* values, Py_ssize_t given) {
    return guarded([&] {
        Arguments arguments(values, given, 1, "add_terms");
        held<Analyser>(self).analysis.add(Texts(arguments[0]).views());
        return Ref::borrow(Py_None).release();
    });
}

PyObject* truncate(PyObject* self, PyObject* const* values, Py_ssize_t given) {
    return guarded([&] {
        Arguments arguments(values, given, 1, "truncate");
        std::int64_t size = to_int(arguments[0]);
        if (size < 0) throw std::invalid_argument("a vocabulary has no fewer than 0 terms");
        held<Analyser>(self).analysis.truncate(static_cast<std::size_t>(size));
        return Ref::borrow(Py_None).release();
    });
}

PyObject* encode_texts(PyObject* self, PyObject* const* values, Py_ssize_t given) {
    return guarded([&] {
        Arguments arguments(values, given, 1, "encode_queries");
        Encoded encoded = encode_queries(self, arguments[0]);
        Ref terms = bytes_of(encoded.terms), offsets = bytes_of(encoded.offsets);
        return PyTuple_Pack(2, terms.get(), offsets.get());
    });
}

PyObject* encode_documents(PyObject* self, PyObject* const* values, Py_ssize_t given) {
    return guarded([&] {
        Arguments arguments(values, given, 2, "encode_documents");
        Analyser& analyser = held<Analyser>(self);
        Texts texts(arguments[0], analyser.analysis.removes_escapes());
        std::int64_t threads = to_int(arguments[1]);
        bool release = texts.bytes() > much_text;
        std::optional<text::Encoding> encoding;
        {
            WithoutLock unlocked(release);
            encoding.emplace(analyser.analysis, texts.views(), static_cast<std::size_t>(std::max<std::int64_t>(threads, 1)));
        }
        for (std::size_t chunk = 0; chunk < encoding->wide().size(); ++chunk) {
            Texts terms = analyser.terms_of(encoding->wide()[chunk]);
            encoding->answer(chunk, terms.views());
        }
        {
            WithoutLock unlocked(release);
            encoding->number();
        }
        auto size = static_cast<Py_ssize_t>(encoding->tokens() * sizeof(std::int32_t));
        Ref terms = checked(PyByteArray_FromStringAndSize(nullptr, size));
        Ref numbers = checked(PyByteArray_FromStringAndSize(nullptr, size));
        Ref fresh = checked(PyList_New(static_cast<Py_ssize_t>(encoding->fresh().size())));
        Py_ssize_t position = 0;
        for (std::string_view term : encoding->fresh()) {
            Ref string = checked(PyUnicode_FromStringAndSize(term.data(), static_cast<Py_ssize_t>(term.size())));
            if (PyList_SetItem(fresh.get(), position++, string.release()) != 0) throw PythonError();
        }
        Ref answer = checked(PyTuple_Pack(3, terms.get(), numbers.get(), fresh.get()));
        auto* to_terms = reinterpret_cast<std::int32_t*>(PyByteArray_AsString(terms.get()));
        auto* to_numbers = reinterpret_cast<std::int32_t*>(PyByteArray_AsString(numbers.get()));
        {
            WithoutLock unlocked(release);
            encoding->write(to_terms, to_numbers);
            encoding->publish();
        }
        return answer.release();
    });
}

PyObject* stem_word(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        Arguments arguments(values, given, 2, "stem");
        text::Stem kind = kind_of(arguments[1]);
        PyObject* word = arguments[0];
        Py_ssize_t size = PyUnicode_GetLength(word);
        if (size < 0) throw PythonError();
        std::u32string letters(static_cast<std::size_t>(size) + 1, U'\0');
        if (PyUnicode_AsUCS4(word, reinterpret_cast<Py_UCS4*>(letters.data()), size + 1, 1) == nullptr) {
            throw PythonError();
        }
        std::size_t left = text::stem(kind, letters.data(), static_cast<std::size_t>(size));
        if (is_ascii(word)) {
            std::string narrow(letters.begin(), letters.begin() + static_cast<std::ptrdiff_t>(left));
            return PyUnicode_FromStringAndSize(narrow.data(), static_cast<Py_ssize_t>(left));
        }
        int order = std::endian::native == std::endian::little ? -1 : 1;
        return PyUnicode_DecodeUTF32(reinterpret_cast<const char*>(letters.data()), static_cast<Py_ssize_t>(4 * left),
                                     "surrogatepass", &order);
    });
}

PyMethodDef analysis_methods[] = {
    method("find", find, "The id of a term, or -1."),
    method("spellings", spellings, "How many spellings are remembered."),
    method("add_terms", add_terms, "Numbers new terms in order."),
    method("truncate", truncate, "Keeps only so many terms."),
    method("encode_queries", encode_texts, "Term ids (int32) and offsets (int64) of texts, as bytes."),
    method("encode_documents", encode_documents,
           "Term ids and text numbers (int32) of all tokens, as bytes, and the new terms."),
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot analysis_slots[] = {
    {Py_tp_doc, const_cast<char*>("What one analyzer knows of one vocabulary.")},
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_dealloc, reinterpret_cast<void*>(drop<Analyser>)},
    {Py_tp_methods, analysis_methods},
    {Py_sq_length, reinterpret_cast<void*>(size)},
    {0, nullptr},
};

PyType_Spec analysis_spec = {
    "fanrank.native._compiled.Analysis", sizeof(Holder<Analyser>), 0, Py_TPFLAGS_DEFAULT, analysis_slots,
};

PyMethodDef functions[] = {
    method("stem", stem_word, "The stem of a word in lower case."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

Encoded encode_queries(PyObject* analysis, PyObject* texts) {
    Analyser& analyser = analyser_of(analysis);
    Texts given(texts, analyser.analysis.removes_escapes());
    text::Queries queries;
    {
        WithoutLock unlocked(given.bytes() > much_text);
        queries = analyser.analysis.encode(given.views());
    }
    if (!queries.wide.empty()) {
        std::vector<std::vector<std::int32_t>> ids(queries.wide.size());
        for (std::size_t i = 0; i < ids.size(); ++i) {
            Texts terms = analyser.terms_of(queries.wide[i].chunk);
            for (std::string_view term : terms.views()) {
                std::int32_t id = analyser.analysis.find(term);
                if (id != text::unknown) ids[i].push_back(id);
            }
        }
        queries.insert(ids);
    }
    return {std::move(queries.terms), std::move(queries.offsets)};
}

int add_text(PyObject* module) {
    PyObject* result = guarded([&]() -> PyObject* {
        Ref empty = checked(PyUnicode_FromString(""));
        Ref method = checked(PyObject_GetAttrString(empty.get(), "isascii"));
        is_ascii_method = PyCFunction_GetFunction(method.get());
        if (is_ascii_method == nullptr) throw PythonError();
        Ref type = checked(PyType_FromModuleAndSpec(module, &analysis_spec, nullptr));
        if (PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())) != 0) throw PythonError();
        if (PyModule_AddFunctions(module, functions) != 0) throw PythonError();
        return Py_None;
    });
    return result == nullptr ? -1 : 0;
}

}  // namespace fanrank::python
