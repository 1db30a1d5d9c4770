// Python's view of postings.hpp and bits.hpp.
#include "postings.hpp"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <vector>

#include "bits.hpp"
#include "python.hpp"

namespace fanrank::python {

namespace {

using namespace fanrank::postings;

// With fewer tokens or postings the lock is kept: a call takes less than 50 us, and a thread that gave the lock away
// may wait 5 ms for it.
constexpr std::size_t UNLOCKED_LEAST = 1 << 12;

template <class T>
constexpr const char* type_name() {
    if constexpr (std::is_same_v<T, std::int32_t>) return "i4";
    if constexpr (std::is_same_v<T, std::int64_t>) return "i8";
    if constexpr (std::is_same_v<T, std::uint16_t>) return "u2";
    if constexpr (std::is_same_v<T, std::uint32_t>) return "u4";
}

// A new array of numpy, and a view of it. `empty` is numpy's function of that name.
template <class T>
struct Made {
    Made(PyObject* empty, std::size_t size)
        : array(checked(PyObject_CallFunction(empty, "ns", static_cast<Py_ssize_t>(size), type_name<T>()))),
          view(array.get()) {}
    Made(PyObject* empty, std::size_t rows, std::size_t columns)
        : array(checked(PyObject_CallFunction(empty, "(nn)s", static_cast<Py_ssize_t>(rows),
                                              static_cast<Py_ssize_t>(columns), type_name<T>()))),
          view(array.get()) {}

    Ref array;
    Array<T> view;
};

// The numbers of impact classes: 2 bytes each where that is enough.
class MadeClasses {
public:
    MadeClasses(PyObject* empty, std::size_t postings, std::size_t classes) {
        if (classes <= 1 << 16) {
            narrow_.emplace(empty, postings);
        } else {
            wide_.emplace(empty, postings);
        }
    }
    JoinedClasses span() const {
        return narrow_ ? JoinedClasses(narrow_->view.span()) : JoinedClasses(wide_->view.span());
    }
    void store(std::span<const std::uint32_t> numbers) const {
        std::visit(
            [&](auto target) {
                using Class = typename decltype(target)::value_type;
                std::transform(numbers.begin(), numbers.end(), target.begin(),
                               [](std::uint32_t number) { return static_cast<Class>(number); });
            },
            span());
    }
    PyObject* array() const { return narrow_ ? narrow_->array.get() : wide_->array.get(); }

private:
    std::optional<Made<std::uint16_t>> narrow_;
    std::optional<Made<std::uint32_t>> wide_;
};

Ref item(PyObject* sequence, Py_ssize_t index) { return checked(PySequence_GetItem(sequence, index)); }

Py_ssize_t length(PyObject* sequence) {
    Py_ssize_t size = PySequence_Size(sequence);
    if (size < 0) throw PythonError();
    return size;
}

std::size_t to_size(PyObject* object, const char* name) {
    std::int64_t value = to_int(object);
    if (value < 0 || value > INT32_MAX) throw std::invalid_argument(std::string(name) + " is out of range");
    return static_cast<std::size_t>(value);
}

template <class Numbers, class T>
void store(const Numbers& numbers, const Array<T>& target, std::size_t at = 0) {
    std::copy(numbers.begin(), numbers.end(), target.data() + at);
}

PyObject* tuple_of(std::initializer_list<PyObject*> arrays) {
    Ref tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(arrays.size())));
    Py_ssize_t index = 0;
    for (PyObject* array : arrays) PyTuple_SetItem(tuple.get(), index++, Ref::borrow(array).release());
    return tuple.release();
}

PyObject* sort_tokens(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        Arguments arguments(values, given, 4, "sort_tokens");
        PyObject* empty = arguments[0];
        std::size_t size = to_size(arguments[2], "size"), flags = to_size(arguments[3], "flags");
        std::vector<Array<const std::int32_t>> arrays;
        std::vector<Field> fields;
        std::size_t tokens = 0;
        for (Py_ssize_t index = 0; index < length(arguments[1]); ++index) {
            Ref pair = item(arguments[1], index);
            auto terms = arrays.emplace_back(item(pair.get(), 0).get(), "terms").span();
            auto documents = arrays.emplace_back(item(pair.get(), 1).get(), "documents").span();
            fields.push_back({terms, documents});
            tokens += terms.size();
        }
        bool unlock = tokens + size >= UNLOCKED_LEAST;
        std::optional<Sorter> sorter;
        {
            WithoutLock unlocked(unlock);
            sorter.emplace(fields, size);
        }
        auto postings = static_cast<std::size_t>(sorter->offsets().back());
        Made<std::int32_t> terms(empty, sorter->terms().size());
        Made<std::int64_t> offsets(empty, sorter->offsets().size());
        Made<std::int32_t> documents(empty, postings);
        Classes found;
        {
            WithoutLock unlocked(unlock);
            found = sorter->fill(documents.view.span(), flags);
        }
        std::size_t classes = found.representatives.size();
        MadeClasses numbers(empty, postings, classes);
        Made<std::int32_t> class_frequencies(empty, fields.size(), classes);
        Made<std::int32_t> class_lengths(empty, fields.size(), classes);
        Made<std::int32_t> lengths(empty, fields.size(), size);
        {
            WithoutLock unlocked(unlock);
            store(sorter->terms(), terms.view);
            store(sorter->offsets(), offsets.view);
            numbers.store(found.numbers);
            for (std::size_t field = 0; field < fields.size(); ++field) {
                for (std::size_t number = 0; number < classes; ++number) {
                    std::size_t posting = found.representatives[number];
                    auto document = static_cast<std::size_t>(documents.view[posting]);
                    class_frequencies.view[field * classes + number] = sorter->frequencies()[field][posting];
                    class_lengths.view[field * classes + number] = sorter->lengths()[field][document];
                }
                store(sorter->lengths()[field], lengths.view, field * size);
            }
        }
        return tuple_of({terms.array.get(), offsets.array.get(), documents.array.get(), numbers.array(),
                         class_frequencies.array.get(), class_lengths.array.get(), lengths.array.get()});
    });
}

using Offsets = std::variant<Array<const std::int32_t>, Array<const std::int64_t>>;
using Documents = std::variant<Array<const std::uint16_t>, Array<const std::uint32_t>, Array<const std::int32_t>>;
using PartClasses = std::variant<Array<const std::uint16_t>, Array<const std::uint32_t>>;

Offsets view_offsets(PyObject* array) {
    if (item_size(array) == 8) return Array<const std::int64_t>(array, "offsets");
    return Array<const std::int32_t>(array, "offsets");
}

bool is_unsigned(PyObject* array) {
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) throw PythonError();
    bool found = view.format != nullptr && std::string(view.format).find_first_of("HILQN") != std::string::npos;
    PyBuffer_Release(&view);
    return found;
}

Documents view_documents(PyObject* array) {
    if (item_size(array) == 2) return Array<const std::uint16_t>(array, "documents");
    if (is_unsigned(array)) return Array<const std::uint32_t>(array, "documents");
    return Array<const std::int32_t>(array, "documents");
}

PartClasses view_classes(PyObject* array) {
    if (item_size(array) == 2) return Array<const std::uint16_t>(array, "impact_classes");
    return Array<const std::uint32_t>(array, "impact_classes");
}

// Views of the arrays of one part.
struct PartArrays {
    explicit PartArrays(PyObject* part)
        : terms(item(part, 0).get(), "terms"),
          offsets(view_offsets(item(part, 1).get())),
          documents(view_documents(item(part, 2).get())),
          classes(view_classes(item(part, 3).get())),
          class_frequencies(item(part, 4).get(), "class_frequencies"),
          class_lengths(item(part, 5).get(), "class_lengths"),
          lengths(item(part, 6).get(), "lengths"),
          give_back(item(part, 7)) {
        if (class_frequencies.size() != class_lengths.size()) {
            throw std::invalid_argument("class_lengths: as many as class_frequencies are needed");
        }
    }

    std::size_t postings() const {
        return std::visit([](const auto& own) { return own.size(); }, documents);
    }
    Part part(std::size_t first, std::size_t size, std::span<const std::uint32_t> names) const {
        return {terms.span(),
                std::visit([](const auto& own) { return decltype(Part::offsets)(own.span()); }, offsets),
                std::visit([](const auto& own) { return decltype(Part::documents)(own.span()); }, documents),
                std::visit([](const auto& own) { return decltype(Part::classes)(own.span()); }, classes),
                first,
                size,
                names};
    }

    Array<const std::int32_t> terms;
    Offsets offsets;
    Documents documents;
    PartClasses classes;
    Array<const std::int32_t> class_frequencies, class_lengths, lengths;
    Ref give_back;
};

// The rows of a column of all parts, one part after another.
std::vector<std::int32_t> column_of(const std::vector<PartArrays>& parts, std::size_t fields, std::size_t field,
                                    Array<const std::int32_t> PartArrays::*table) {
    std::vector<std::int32_t> column;
    for (const auto& part : parts) {
        auto all = (part.*table).span();
        auto row = all.subspan(field * (all.size() / fields), all.size() / fields);
        column.insert(column.end(), row.begin(), row.end());
    }
    return column;
}

PyObject* join_postings(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        Arguments arguments(values, given, 5, "join_postings");
        PyObject* empty = arguments[0];
        std::size_t fields = to_size(arguments[2], "fields"), block = to_size(arguments[3], "block"),
                    flags = to_size(arguments[4], "flags");
        if (fields == 0) throw std::invalid_argument("fields: at least one is needed");
        std::vector<PartArrays> arrays;
        std::size_t work = 0;
        for (Py_ssize_t index = 0; index < length(arguments[1]); ++index) {
            const auto& own = arrays.emplace_back(item(arguments[1], index).get());
            work += own.terms.size() + own.postings() + own.class_lengths.size() + own.lengths.size();
        }
        bool unlock = work >= UNLOCKED_LEAST;

        std::optional<Join> join;
        Classes table;
        std::vector<std::vector<std::int32_t>> columns, lengths;
        {
            WithoutLock unlocked(unlock);
            for (auto part_table : {&PartArrays::class_frequencies, &PartArrays::class_lengths}) {
                for (std::size_t field = 0; field < fields; ++field) {
                    columns.push_back(column_of(arrays, fields, field, part_table));
                }
            }
            std::vector<Column> tuples;
            for (const auto& column : columns) tuples.push_back({column});
            table = number_tuples(tuples, columns[0].size(), flags);
            std::vector<Part> parts;
            std::size_t first = 0, named = 0;
            for (const auto& own : arrays) {
                std::size_t classes = own.class_frequencies.size() / fields;
                std::size_t size = own.lengths.size() / fields;
                parts.push_back(own.part(first, size, std::span(table.numbers).subspan(named, classes)));
                first += size;
                named += classes;
            }
            if (first > INT32_MAX) throw std::invalid_argument("the parts have too many documents together");
            join.emplace(std::move(parts));
            for (std::size_t field = 0; field < fields; ++field) {
                lengths.push_back(column_of(arrays, fields, field, &PartArrays::lengths));
            }
        }
        std::size_t postings = static_cast<std::size_t>(join->offsets().back()), classes = table.representatives.size();
        Made<std::int32_t> terms(empty, join->terms().size());
        Made<std::int64_t> offsets(empty, join->offsets().size());
        Made<std::int32_t> documents(empty, postings);
        MadeClasses numbers(empty, postings, classes);
        Made<std::int32_t> class_frequencies(empty, fields, classes), class_lengths(empty, fields, classes);
        Made<std::int32_t> all_lengths(empty, fields, lengths[0].size());
        bool told = std::any_of(arrays.begin(), arrays.end(), [](auto& own) { return own.give_back.get() != Py_None; });
        bool more = true;
        while (more) {
            {
                WithoutLock unlocked(unlock);
                do {
                    more = join->copy_block(documents.view.span(), numbers.span(), block);
                } while (more && !told);
            }
            for (std::size_t number = 0; more && number < arrays.size(); ++number) {
                PyObject* give_back = arrays[number].give_back.get();
                if (give_back == Py_None) continue;
                checked(PyObject_CallFunction(give_back, "n", static_cast<Py_ssize_t>(join->copied(number))));
            }
        }
        {
            WithoutLock unlocked(unlock);
            store(join->terms(), terms.view);
            store(join->offsets(), offsets.view);
            for (std::size_t field = 0; field < fields; ++field) {
                for (std::size_t number = 0; number < classes; ++number) {
                    std::size_t index = table.representatives[number];
                    class_frequencies.view[field * classes + number] = columns[field][index];
                    class_lengths.view[field * classes + number] = columns[fields + field][index];
                }
                store(lengths[field], all_lengths.view, field * lengths[field].size());
            }
        }
        return tuple_of({terms.array.get(), offsets.array.get(), documents.array.get(), numbers.array(),
                         class_frequencies.array.get(), class_lengths.array.get(), all_lengths.array.get()});
    });
}

PyObject* pack(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 3, "pack_bits");
        const Array<const std::uint32_t> numbers(arguments[0], "numbers");
        const Array<const std::uint8_t> widths(arguments[1], "widths");
        const Array<std::uint8_t> bits(arguments[2], "bits");
        {
            WithoutLock unlocked(numbers.size() >= UNLOCKED_LEAST);
            pack_bits(numbers.span(), widths.span(), bits.span());
        }
        return Ref::borrow(Py_None).release();
    });
}

template <class Number>
void unpack_into(const Arguments& arguments) {
    const Array<const std::uint8_t> bits(arguments[0], "bits"), widths(arguments[1], "widths");
    const std::size_t step_bits = to_size(arguments[2], "step_bits");
    const Array<Number> numbers(arguments[3], "numbers");
    WithoutLock unlocked(numbers.size() >= UNLOCKED_LEAST);
    unpack_bits(bits.span(), widths.span(), step_bits, numbers.span());
}

PyObject* unpack(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 5, "unpack_bits");
        if (to_size(arguments[4], "bytes") == sizeof(std::uint16_t)) {
            unpack_into<std::uint16_t>(arguments);
        } else {
            unpack_into<std::uint32_t>(arguments);
        }
        return Ref::borrow(Py_None).release();
    });
}

PyMethodDef functions[] = {
    method("pack_bits", pack, "pack_bits(numbers, widths, bits): fills `bits` with blocks of 32 numbers."),
    method("unpack_bits", unpack, "unpack_bits(bits, widths, step_bits, numbers, bytes): fills `numbers`, of so many bytes each."),
    method("sort_tokens", sort_tokens,
           "sort_tokens(empty, fields, size, flags): the arrays of `Postings`, of the tokens of `size` documents.\n\n"
           "Each field is (terms, documents), both int32. `empty` is numpy's, and `flags` the largest table."),
    method("join_postings", join_postings,
           "join_postings(empty, parts, fields, block, flags): the arrays of `Postings`, of all documents of the parts."
           "\n\nEach part is its seven arrays, and None or a function that is told how many postings were read."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_postings(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace fanrank::python
