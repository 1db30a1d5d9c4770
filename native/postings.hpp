// Postings by term: built from tokens, and joined from the postings of neighbouring documents.
//
// The arrays are those of engine/index/segment.py, and the same as engine/index/postings.py makes with numpy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace fanrank::postings {

using Numbers = std::span<const std::int32_t>;

// The tokens of one text field. Documents ascend, and neither they nor terms are negative.
struct Field {
    Numbers terms;
    Numbers documents;
};

// Tuples numbered in lexicographic order, so that the numbers depend on the distinct tuples alone.
struct Classes {
    std::vector<std::uint32_t> numbers;        // [tuples] of each tuple
    std::vector<std::size_t> representatives;  // [classes] an index at which each distinct tuple stands
};

// The number at index i is ``values[i]``, or ``values[rows[i]]`` where there are rows. No value is negative.
struct Column {
    Numbers values;
    Numbers rows = {};
};

// The tuple at index i is the number at i of all columns; `size` is how many there are.
// A table of at most `flags` entries numbers them; tuples with more possible values are sorted.
Classes number_tuples(std::span<const Column> columns, std::size_t size, std::size_t flags);

// A place for each term in a table: its own number, unless the table would be too large for this many terms. Then the
// terms are sorted, and their ranks are the places.
class TermPlaces {
public:
    explicit TermPlaces(std::span<const Numbers> terms);

    std::size_t size() const { return size_; }
    // Whether each place is the term itself.
    bool by_term() const { return distinct_.empty(); }
    std::size_t place(std::int32_t term) const;
    std::int32_t term(std::size_t place) const;

private:
    std::vector<std::int32_t> distinct_;
    std::size_t size_ = 0;
};

// Sorts the tokens of documents by term, those of a term by document, in two steps, as the caller provides the memory of
// the lists: first `terms` and `offsets` are known, then `fill` writes the lists.
class Sorter {
public:
    // Throws std::invalid_argument where a document is out of range or out of order.
    Sorter(std::vector<Field> fields, std::size_t size);

    const std::vector<std::int32_t>& terms() const { return terms_; }
    const std::vector<std::int64_t>& offsets() const { return offsets_; }
    const std::vector<std::vector<std::int32_t>>& lengths() const { return lengths_; }          // [fields][documents]
    const std::vector<std::vector<std::int32_t>>& frequencies() const { return frequencies_; }  // [fields][postings]

    // Writes the documents of all lists. Returns the classes of the tuples (frequency in each field, length of each
    // field) of the postings.
    Classes fill(std::span<std::int32_t> documents, std::size_t flags);

private:
    template <class Visit>
    void for_each_token(Visit&& visit) const;

    std::vector<Field> fields_;  // whose terms are places
    std::size_t size_;
    std::vector<std::vector<std::int32_t>> lengths_, places_of_terms_, frequencies_;
    std::vector<std::int64_t> free_;  // [places] the next free posting of each list
    std::vector<std::int32_t> terms_;
    std::vector<std::int64_t> offsets_;
};

// Postings of neighbouring documents, one of several parts that are joined.
struct Part {
    Numbers terms;                                                               // [terms] ascending
    std::variant<Numbers, std::span<const std::int64_t>> offsets;                // [terms + 1]
    std::variant<std::span<const std::uint16_t>, std::span<const std::uint32_t>, Numbers> documents;  // [postings]
    std::variant<std::span<const std::uint16_t>, std::span<const std::uint32_t>> classes;             // [postings]
    std::size_t first;                     // the number of its first document in the joined postings
    std::size_t size;                      // its documents
    std::span<const std::uint32_t> names;  // [classes of the part] the number of each class in the joined postings
};

using JoinedClasses = std::variant<std::span<std::uint16_t>, std::span<std::uint32_t>>;

// Joins parts in steps, as the caller provides the memory of the joined lists: first `terms` and `offsets` are known,
// then `copy_block` writes the lists.
class Join {
public:
    // Throws std::invalid_argument where the arrays of a part do not fit each other.
    explicit Join(std::vector<Part> parts);

    const std::vector<std::int32_t>& terms() const { return terms_; }
    const std::vector<std::int64_t>& offsets() const { return offsets_; }

    // Copies the next lists of neighbouring terms from all parts: as many as have `block` postings, at least one list.
    // So what is written stays in the caches. Returns false where all lists were copied before.
    bool copy_block(std::span<std::int32_t> documents, JoinedClasses classes, std::size_t block);

    // How many postings of a part were copied. They will not be read again.
    std::size_t copied(std::size_t part) const;

private:
    std::vector<Part> parts_;
    TermPlaces places_;
    std::vector<std::int64_t> free_;  // [places] the next free posting of each list
    std::vector<std::int32_t> terms_;
    std::vector<std::int64_t> offsets_;
    std::vector<std::size_t> next_;  // [parts] the next list of each part
    std::size_t done_ = 0;           // joined lists that were copied
};

}  // namespace fanrank::postings
