// Python's view of search.hpp: segments, snapshots, filter masks, links of neighbours, and the search of a batch.
//
// Long because what one call gives to another (a snapshot with its segments, masks and links) is held and checked here.
#include "python.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "search.hpp"
#include "text_binding.hpp"

namespace fanrank::python {

namespace {

using namespace fanrank::search;

PyTypeObject* segment_type = nullptr;
PyTypeObject* snapshot_type = nullptr;
PyTypeObject* masks_type = nullptr;
PyTypeObject* links_type = nullptr;
PyTypeObject* dialogue_type = nullptr;

// With at most so many postings to read, terms to plan and places to fill, a call keeps the interpreter's lock: it takes
// less than 50 us, and taking the lock again may cost more where other threads wait for it.
constexpr std::int64_t HELD_POSTINGS = 1 << 14;
constexpr std::size_t HELD_TERMS = 1 << 11, HELD_PLACES = 1 << 15;

// A segment with the arrays that it reads.
struct HeldSegment {
    Array<const std::int32_t> terms, documents;
    Array<const std::int64_t> offsets;
    Array<const std::uint16_t> classes;
    Array<const std::uint32_t> wide_classes;
    Array<const double> times;
    std::vector<double> latest_before;
    std::optional<Segment> segment;
};

struct HeldMasks {
    std::vector<Array<const std::uint8_t>> arrays;
    Masks masks;
};

// A snapshot with its segments and arrays.
struct HeldSnapshot {
    std::vector<Ref> segments;
    std::vector<Array<const std::uint8_t>> alive;
    std::vector<Array<const std::int64_t>> deleted;
    Array<const std::int32_t> counts;
    Snapshot snapshot;
};

// The links of a snapshot with their arrays.
struct HeldLinks {
    std::vector<Array<const std::int32_t>> parts;
    Array<const std::int64_t> earlier, later, later_sorted, earlier_of;
    Links links;
};

// A strategy for dialogues over a snapshot with its arrays.
struct HeldDialogue {
    Ref links;
    Array<const std::int64_t> lent, around;
    std::vector<Array<const std::int32_t>> columns;
    Lending lending;
    Dialogue dialogue;
};

PyObject* item(PyObject* tuple, Py_ssize_t index) {
    PyObject* found = PyTuple_GetItem(tuple, index);
    if (found == nullptr) throw PythonError();
    return found;
}

std::int64_t size_of(PyObject* sequence) {
    const Py_ssize_t size = PySequence_Size(sequence);
    if (size < 0) throw PythonError();
    return size;
}

template <class Held>
Held& checked_held(PyObject* object, PyTypeObject* type) {
    if (Py_TYPE(object) != type) {
        PyErr_SetString(PyExc_TypeError, "an object of another type was given");
        throw PythonError();
    }
    return held<Held>(object);
}

// segment(terms, offsets, documents, impact_classes, times, options)
PyObject* make_segment(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 6, "segment");
        return wrap<HeldSegment>(segment_type, [&] {
            auto made = std::make_unique<HeldSegment>();
            made->terms = Array<const std::int32_t>(arguments[0], "terms");
            made->offsets = Array<const std::int64_t>(arguments[1], "offsets");
            made->documents = Array<const std::int32_t>(arguments[2], "documents");
            SegmentArrays arrays;
            if (item_size(arguments[3]) == 2) {
                made->classes = Array<const std::uint16_t>(arguments[3], "impact_classes");
            } else {
                made->wide_classes = Array<const std::uint32_t>(arguments[3], "impact_classes");
            }
            if (arguments[4] != Py_None) made->times = Array<const double>(arguments[4], "times");
            arrays.terms = made->terms.span();
            arrays.offsets = made->offsets.span();
            arrays.documents = made->documents.span();
            arrays.classes = made->classes.span();
            arrays.wide_classes = made->wide_classes.span();
            arrays.times = made->times.span();
            SegmentOptions options;
            for (int rank = 0; rank < RANKS; ++rank) options.ranks[rank] = to_int(item(arguments[5], rank));
            options.block_postings = to_int(item(arguments[5], RANKS));
            options.groups = to_int(item(arguments[5], RANKS + 1));
            options.least_postings = to_int(item(arguments[5], RANKS + 2));
            options.word_share = to_int(item(arguments[5], RANKS + 3));
            options.time_block = to_int(item(arguments[5], RANKS + 4));
            options.dense_least = to_int(item(arguments[5], RANKS + 5));
            arrays.size = to_int(item(arguments[5], RANKS + 6));
            const std::size_t postings = arrays.documents.size();
            if (arrays.offsets.size() != arrays.terms.size() + 1 ||
                arrays.classes.size() + arrays.wide_classes.size() != postings ||
                static_cast<std::size_t>(arrays.offsets.back()) != postings ||
                (!arrays.times.empty() && arrays.times.size() != static_cast<std::size_t>(arrays.size))) {
                throw std::invalid_argument("the arrays of a segment do not belong together");
            }
            made->latest_before = arrays.read_times(options.time_block, arguments[4] != Py_None);
            arrays.latest_before = made->latest_before;
            made->segment.emplace(arrays, options);
            return made.release();
        });
    });
}

// masks(arrays, most): bool [documents] for each part of a snapshot, and how many lists are surveyed by them.
PyObject* make_masks(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 2, "masks");
        return wrap<HeldMasks>(masks_type, [&] {
            auto made = std::make_unique<HeldMasks>();
            made->masks.most = static_cast<std::size_t>(to_int(arguments[1]));
            const std::int64_t count = size_of(arguments[0]);
            for (std::int64_t number = 0; number < count; ++number) {
                made->arrays.emplace_back(item(arguments[0], number), "mask");
                const auto span = made->arrays.back().span();
                made->masks.of_part.push_back(span);
                made->masks.passing.push_back(std::count_if(span.begin(), span.end(), [](auto one) { return one != 0; }));
            }
            return made.release();
        });
    });
}

// links(parts, earlier, later, later_sorted, earlier_of): parts are (first, previous, following).
PyObject* make_links(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 5, "links");
        return wrap<HeldLinks>(links_type, [&] {
            auto made = std::make_unique<HeldLinks>();
            const std::int64_t count = size_of(arguments[0]);
            for (std::int64_t number = 0; number < count; ++number) {
                PyObject* part = item(arguments[0], number);
                Links::Part own;
                own.first = to_int(item(part, 0));
                own.previous = made->parts.emplace_back(item(part, 1), "previous").span();
                own.following = made->parts.emplace_back(item(part, 2), "following").span();
                made->links.parts.push_back(own);
            }
            made->earlier = Array<const std::int64_t>(arguments[1], "earlier");
            made->later = Array<const std::int64_t>(arguments[2], "later");
            made->later_sorted = Array<const std::int64_t>(arguments[3], "later_sorted");
            made->earlier_of = Array<const std::int64_t>(arguments[4], "earlier_of");
            made->links.earlier = made->earlier.span();
            made->links.later = made->later.span();
            made->links.later_sorted = made->later_sorted.span();
            made->links.earlier_of = made->earlier_of.span();
            return made.release();
        });
    });
}

// dialogue(links, lent, around, depth, shares, parts, assistant, options)
// A share is (evidence, weight, relative); a part is (said, lengths, roles or None); options are (half_length, wordy,
// times).
PyObject* make_dialogue(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 8, "dialogue");
        return wrap<HeldDialogue>(dialogue_type, [&] {
            auto made = std::make_unique<HeldDialogue>();
            Dialogue& dialogue = made->dialogue;
            const Links& links = checked_held<HeldLinks>(arguments[0], links_type).links;
            made->links = Ref::borrow(arguments[0]);
            made->lending.links = &links;
            made->lent = Array<const std::int64_t>(arguments[1], "weights of neighbours");
            made->around = Array<const std::int64_t>(arguments[2], "weights of words around");
            made->lending.weights = made->lent.span();
            dialogue.around = made->around.span();
            if (std::max(made->lent.size(), made->around.size()) > static_cast<std::size_t>(MAX_WINDOW)) {
                throw std::invalid_argument("a window of neighbours that is too large");
            }
            dialogue.depth = to_int(arguments[3]);
            for (std::int64_t number = 0; number < size_of(arguments[4]); ++number) {
                PyObject* share = item(arguments[4], number);
                const std::int64_t evidence = to_int(item(share, 0));
                if (evidence < 0 || evidence > static_cast<std::int64_t>(Evidence::told)) {
                    throw std::invalid_argument("unknown evidence");
                }
                dialogue.shares.push_back(
                    {static_cast<Evidence>(evidence), to_double(item(share, 1)), to_bool(item(share, 2))});
            }
            bool fits = static_cast<std::size_t>(size_of(arguments[5])) == links.parts.size();
            for (std::size_t number = 0; fits && number < links.parts.size(); ++number) {
                PyObject* part = item(arguments[5], static_cast<Py_ssize_t>(number));
                const std::size_t size = links.parts[number].previous.size();
                CuePart own;
                own.said = made->columns.emplace_back(item(part, 0), "said").span();
                own.lengths = made->columns.emplace_back(item(part, 1), "lengths").span();
                if (item(part, 2) != Py_None) own.roles = made->columns.emplace_back(item(part, 2), "roles").span();
                fits = own.said.size() == size && (own.roles.empty() || own.roles.size() == size) &&
                       (size == 0 || own.lengths.size() % size == 0);
                dialogue.parts.push_back(own);
            }
            if (!fits) throw std::invalid_argument("columns of another snapshot");
            dialogue.assistant = static_cast<std::int32_t>(to_int(arguments[6]));
            PyObject* options = arguments[7];
            dialogue.options = {to_double(item(options, 0)), to_int(item(options, 1)), to_int(item(options, 2))};
            return made.release();
        });
    });
}

Method method_of(PyObject* name) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(name, &size);
    if (text == nullptr) throw PythonError();
    const std::string_view method(text, static_cast<std::size_t>(size));
    if (method == "lucene") return Method::lucene;
    if (method == "robertson_floor0") return Method::robertson_floor0;
    if (method == "bm25l") return Method::bm25l;
    if (method == "bm25+") return Method::bm25plus;
    if (method == "dot") return Method::dot;
    throw std::invalid_argument("no search for method " + std::string(method));
}

// snapshot(parts, counts, documents, method, k1, delta, counts_once, largest_frequency)
// Each part is (segment, saturated, alive, deleted_terms, deleted_frequencies); the last three are None where nothing is
// deleted.
PyObject* make_snapshot(PyObject*, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 8, "snapshot");
        return wrap<HeldSnapshot>(snapshot_type, [&] {
            auto made = std::make_unique<HeldSnapshot>();
            Snapshot& snapshot = made->snapshot;
            const std::int64_t count = size_of(arguments[0]);
            std::int64_t first = 0;
            double latest = -std::numeric_limits<double>::infinity();
            for (std::int64_t number = 0; number < count; ++number) {
                PyObject* given_part = item(arguments[0], number);
                PyObject* object = item(given_part, 0);
                Segment& segment = *checked_held<HeldSegment>(object, segment_type).segment;
                const Array<const double> saturated(item(given_part, 1), "saturated");
                auto part = std::make_unique<Part>(segment, first, saturated.span());
                if (item(given_part, 2) != Py_None) {
                    const auto& alive = made->alive.emplace_back(item(given_part, 2), "alive");
                    if (static_cast<std::int64_t>(alive.size()) != segment.arrays.size) {
                        throw std::invalid_argument("a mask of another segment");
                    }
                    part->alive = alive.span();
                    part->deleted = std::count(part->alive.begin(), part->alive.end(), 0);
                    part->deleted_terms = made->deleted.emplace_back(item(given_part, 3), "deleted_terms").span();
                    part->deleted_frequencies =
                        made->deleted.emplace_back(item(given_part, 4), "deleted_frequencies").span();
                }
                first += segment.arrays.size;
                if (segment.arrays.size > 0) latest = std::max(latest, segment.arrays.latest_before.back());
                snapshot.latest_upto.push_back(latest);
                snapshot.parts.push_back(std::move(part));
                made->segments.push_back(Ref::borrow(object));
            }
            if (arguments[1] != Py_None) {
                made->counts = Array<const std::int32_t>(arguments[1], "counts");
                snapshot.counts = made->counts.span();
            }
            snapshot.statistics.documents = to_int(arguments[2]);
            snapshot.statistics.method = method_of(arguments[3]);
            snapshot.statistics.k1 = to_double(arguments[4]);
            snapshot.statistics.delta = to_double(arguments[5]);
            snapshot.statistics.counts_once = to_bool(arguments[6]);
            snapshot.statistics.largest_frequency = to_int(arguments[7]);
            return made.release();
        });
    });
}

// (masks, since, until, now, rate); masks is None where every record passes.
Setting setting_of(PyObject* given, std::size_t parts) {
    Setting setting;
    if (item(given, 0) != Py_None) {
        setting.masks = &checked_held<HeldMasks>(item(given, 0), masks_type).masks;
        if (setting.masks->of_part.size() != parts) throw std::invalid_argument("masks of another snapshot");
    }
    setting.since = to_double(item(given, 1));
    setting.until = to_double(item(given, 2));
    setting.ranged = setting.since > -std::numeric_limits<double>::infinity() ||
                     setting.until < std::numeric_limits<double>::infinity();
    setting.decay = {to_double(item(given, 3)), to_double(item(given, 4)), nullptr};
    if (setting.decay.rate > 0.0) setting.decay.table = decay_table();
    return setting;
}

// (tile, faded_tile, scan_percent, pruned_documents, room, least_room, dense_uses, shared_postings, lent_share, later_share,
// kept_postings, exhaustive)
ScoreOptions options_of(PyObject* given) {
    ScoreOptions options;
    options.tile = to_int(item(given, 0));
    options.faded_tile = to_int(item(given, 1));
    options.scan_percent = to_int(item(given, 2));
    options.pruned_documents = to_int(item(given, 3));
    options.room = to_int(item(given, 4));
    options.least_room = to_int(item(given, 5));
    options.dense_uses = to_int(item(given, 6));
    options.shared_postings = to_int(item(given, 7));
    options.lent_share = to_int(item(given, 8));
    options.later_share = to_int(item(given, 9));
    options.kept_postings = to_int(item(given, 10));
    options.exhaustive = to_bool(item(given, 11));
    return options;
}

// Nanoseconds between calls.
class Clock {
public:
    std::int64_t lap() {
        const auto now = std::chrono::steady_clock::now();
        const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(now - last_).count();
        last_ = now;
        return spent;
    }

private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// The distinct texts (or tuples of terms) of a batch, and the position among them of each text.
Ref distinct_texts(PyObject* texts, std::span<std::int64_t> source, std::vector<std::int64_t>& rows) {
    const std::int64_t count = size_of(texts);
    Ref list = checked(PyList_New(0));
    Ref seen = checked(PyDict_New());
    for (std::int64_t row = 0; row < count; ++row) {
        Ref text = checked(PySequence_GetItem(texts, row));
        PyObject* known = PyDict_GetItemWithError(seen.get(), text.get());
        if (known == nullptr) {
            if (PyErr_Occurred() != nullptr) throw PythonError();
            Ref number = checked(PyLong_FromLongLong(row));
            if (PyDict_SetItem(seen.get(), text.get(), number.get()) != 0) throw PythonError();
            if (PyList_Append(list.get(), text.get()) != 0) throw PythonError();
            source[row] = row;
            rows.push_back(row);
        } else {
            source[row] = to_int(known);
        }
    }
    return list;
}

// The terms of a batch of texts; equal texts are analysed and answered once. `analysis` may also be the terms and offsets
// of all texts, as `TermIndexer.encode_queries` gives them.
Encoded analyse(PyObject* analysis, PyObject* texts, std::span<std::int64_t> source, std::vector<std::int64_t>& rows) {
    const Ref distinct = distinct_texts(texts, source, rows);
    if (PyTuple_Check(analysis) == 0) return encode_queries(analysis, distinct.get());
    const Array<const std::int32_t> terms(item(analysis, 0), "terms");
    const Array<const std::int64_t> offsets(item(analysis, 1), "offsets");
    if (offsets.size() != source.size() + 1) throw std::invalid_argument("terms of other texts");
    Encoded encoded;
    encoded.offsets.push_back(0);
    for (const std::int64_t row : rows) {
        const std::int64_t start = offsets[row], end = offsets[row + 1];
        if (start < 0 || end < start || static_cast<std::size_t>(end) > terms.size()) {
            throw std::invalid_argument("offsets beyond the terms");
        }
        encoded.terms.insert(encoded.terms.end(), terms.data() + start, terms.data() + end);
        encoded.offsets.push_back(static_cast<std::int64_t>(encoded.terms.size()));
    }
    return encoded;
}

// What a search says of its work: (postings, row entries, lookups, bytes, ns of analysis, of planning, of scoring).
PyObject* report(const Counted& counted, std::int64_t analysed, std::int64_t planned, std::int64_t scored) {
    return Py_BuildValue("(LLLLLLL)", static_cast<long long>(counted.postings),
                         static_cast<long long>(counted.row_entries), static_cast<long long>(counted.lookups),
                         static_cast<long long>(counted.bytes), static_cast<long long>(analysed),
                         static_cast<long long>(planned), static_cast<long long>(scored));
}

bool is_long_work(const Plan& plan) {
    std::int64_t postings = 0;
    for (const Slot& slot : plan.slots) postings += plan.frequencies[slot.term];
    return postings > HELD_POSTINGS;
}

void check_links(const Links& links, const Snapshot& snapshot, std::span<const Setting> settings) {
    bool fits = links.parts.size() == snapshot.parts.size() && !snapshot.parts.empty();
    for (std::size_t number = 0; fits && number < links.parts.size(); ++number) {
        const auto size = static_cast<std::size_t>(snapshot.parts[number]->segment.arrays.size);
        const Links::Part& part = links.parts[number];
        fits = part.first == snapshot.parts[number]->first && part.previous.size() == size && part.following.size() == size;
    }
    if (!fits) throw std::invalid_argument("links of another snapshot");
    for (const Setting& setting : settings) {
        if (setting.decay.rate > 0.0) throw std::invalid_argument("scores that fade are not borrowed here");
    }
}

// The arrays of what the texts of a batch ask of cues.
struct HeldAsked {
    // (dialogue, told, speakers): `told` are bytes; of each part None or (offsets, ids), or None for all.
    HeldAsked(PyObject* given, std::size_t parts, std::size_t texts) : told(item(given, 1), "told") {
        asked.told = told.span();
        bool fits = told.size() == texts;
        if (item(given, 2) != Py_None) {
            fits = fits && static_cast<std::size_t>(size_of(item(given, 2))) == parts;
            for (std::size_t number = 0; fits && number < parts; ++number) {
                PyObject* part = item(item(given, 2), static_cast<Py_ssize_t>(number));
                Asked::Speakers& own = asked.speakers.emplace_back();
                if (part == Py_None) continue;
                own.offsets = offsets.emplace_back(item(part, 0), "offsets of speakers").span();
                own.ids = ids.emplace_back(item(part, 1), "speakers").span();
                fits = own.offsets.size() == texts + 1 && own.offsets.front() == 0 &&
                       std::is_sorted(own.offsets.begin(), own.offsets.end()) &&
                       own.offsets.back() == static_cast<std::int64_t>(own.ids.size());
            }
        }
        if (!fits) throw std::invalid_argument("cues of another batch");
    }

    Array<const std::uint8_t> told;
    std::vector<Array<const std::int64_t>> offsets;
    std::vector<Array<const std::int32_t>> ids;
    Asked asked;
};

// Snapshot.search_texts(analysis, texts, k, setting, options, threads, unit, scores, documents, counts, source, dialogue)
// All queries share k and the setting. Equal texts are answered once. `dialogue` is None, or as `HeldAsked` takes it.
// Returns what `report` does; a list of the documents whose texts must be read first, where there are some; None where
// sums may leave int32: then nothing was answered.
PyObject* search_texts(PyObject* self, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 12, "search_texts");
        const Snapshot& snapshot = held<HeldSnapshot>(self).snapshot;
        PyObject* texts = arguments[1];
        const std::int64_t count = size_of(texts), width = to_int(arguments[2]);
        const Setting setting = setting_of(arguments[3], snapshot.parts.size());
        const Array<double> scores(arguments[7], "scores");
        const Array<std::int64_t> documents(arguments[8], "documents");
        const Array<std::int32_t> counts(arguments[9], "counts");
        const Array<std::int64_t> source(arguments[10], "source");
        const auto places = static_cast<std::size_t>(count * width);
        if (scores.size() != places || documents.size() != places ||
            counts.size() != static_cast<std::size_t>(count) || source.size() != static_cast<std::size_t>(count)) {
            throw std::invalid_argument("the arrays of the answer have other sizes than the batch");
        }
        const HeldDialogue* dialogue = nullptr;
        std::optional<HeldAsked> asked;
        if (arguments[11] != Py_None) {
            dialogue = &checked_held<HeldDialogue>(item(arguments[11], 0), dialogue_type);
            check_links(*dialogue->lending.links, snapshot, {&setting, 1});
            asked.emplace(arguments[11], snapshot.parts.size(), static_cast<std::size_t>(count));
        }
        Clock clock;
        std::vector<std::int64_t> rows, unread;
        const Encoded encoded = analyse(arguments[0], texts, source.span(), rows);
        const std::int64_t analysed = clock.lap();
        const bool is_long = encoded.terms.size() > HELD_TERMS || places > HELD_PLACES;
        const Plan plan = [&] {
            const WithoutLock released(is_long);
            return snapshot.plan(encoded.terms, encoded.offsets, {});
        }();
        const std::int64_t planned = clock.lap();
        if (plan.large) return Py_NewRef(Py_None);
        Request request;
        const std::vector<std::int64_t> k(rows.size(), width), settings(rows.size(), 0);
        request.k = k;
        request.setting = settings;
        request.settings = {&setting, 1};
        request.options = options_of(arguments[4]);
        request.threads = static_cast<int>(to_int(arguments[5]));
        if (dialogue != nullptr) {
            request.lending = &dialogue->lending;
            request.dialogue = &dialogue->dialogue;
            request.asked = &asked->asked;
        }
        Answer answer{.rows = rows,
                      .width = width,
                      .unit = to_double(arguments[6]),
                      .scores = scores.data(),
                      .documents = documents.data(),
                      .counts = counts.data()};
        Counted counted;
        {
            const WithoutLock released(is_long || dialogue != nullptr || is_long_work(plan));
            std::fill(scores.data(), scores.data() + places, -std::numeric_limits<double>::infinity());
            std::fill(documents.data(), documents.data() + places, -1);
            counted = search::search(snapshot, plan, request, answer, &unread);
            for (std::int64_t row = 0; row < count; ++row) {
                const std::int64_t from = source[row];
                if (from == row) continue;
                std::copy_n(scores.data() + from * width, width, scores.data() + row * width);
                std::copy_n(documents.data() + from * width, width, documents.data() + row * width);
                counts[row] = counts[from];
            }
        }
        if (!unread.empty()) {
            Ref list = checked(PyList_New(0));
            for (const std::int64_t document : unread) {
                const Ref number = checked(PyLong_FromLongLong(document));
                if (PyList_Append(list.get(), number.get()) != 0) throw PythonError();
            }
            return list.release();
        }
        return report(counted, analysed, planned, clock.lap());
    });
}

// Snapshot.search_terms(terms, offsets, weights, rows, k, setting, settings, options, threads, quanta, documents, counts,
//                       lending)
// The queries' hits go to their rows of the arrays [batch, width]; other places are left as they are. `lending` is None,
// or (links, weights): then sums are in steps, and no setting may decay. Returns what `report` does, or None where sums
// of quanta may leave int32: then nothing was answered.
PyObject* search_terms(PyObject* self, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 13, "search_terms");
        const Snapshot& snapshot = held<HeldSnapshot>(self).snapshot;
        const Array<const std::int32_t> terms(arguments[0], "terms");
        const Array<const std::int64_t> offsets(arguments[1], "offsets");
        Array<const std::int64_t> weights;
        if (arguments[2] != Py_None) weights = Array<const std::int64_t>(arguments[2], "weights");
        const Array<const std::int64_t> rows(arguments[3], "rows"), k(arguments[4], "k"), setting(arguments[5], "setting");
        std::vector<Setting> settings;
        const std::int64_t count = size_of(arguments[6]);
        for (std::int64_t number = 0; number < count; ++number) {
            settings.push_back(setting_of(item(arguments[6], number), snapshot.parts.size()));
        }
        const Array<std::int64_t> quanta(arguments[9], "quanta"), documents(arguments[10], "documents");
        const Array<std::int32_t> counts(arguments[11], "counts");
        const std::size_t queries = rows.size();
        if (offsets.size() != queries + 1 || k.size() != queries || setting.size() != queries ||
            documents.size() != quanta.size() || counts.size() == 0) {
            throw std::invalid_argument("the columns of the queries have different lengths");
        }
        Clock clock;
        const Plan plan = snapshot.plan(terms.span(), offsets.span(), weights.span());
        if (plan.large || plan.overflow > 0) return Py_NewRef(Py_None);
        const std::int64_t planned = clock.lap();
        Request request;
        request.k = k.span();
        request.setting = setting.span();
        request.settings = settings;
        request.options = options_of(arguments[7]);
        request.threads = static_cast<int>(to_int(arguments[8]));
        Lending lending;
        Array<const std::int64_t> lent;
        if (arguments[12] != Py_None) {
            lending.links = &checked_held<HeldLinks>(item(arguments[12], 0), links_type).links;
            lent = Array<const std::int64_t>(item(arguments[12], 1), "weights of neighbours");
            lending.weights = lent.span();
            if (lent.size() > static_cast<std::size_t>(MAX_WINDOW)) throw std::invalid_argument("a window of neighbours that is too large");
            check_links(*lending.links, snapshot, settings);
            request.lending = &lending;
        }
        const Answer answer{.rows = rows.span(),
                            .width = static_cast<std::int64_t>(documents.size() / counts.size()),
                            .quanta = quanta.data(),
                            .documents = documents.data(),
                            .counts = counts.data()};
        Counted counted;
        {
            const WithoutLock released(is_long_work(plan));
            counted = search::search(snapshot, plan, request, answer);
        }
        return report(counted, 0, planned, clock.lap());
    });
}

// Snapshot.bytes(): of what was worked out for its segments so far.
PyObject* bytes(PyObject* self, PyObject* const*, Py_ssize_t) {
    return guarded([&]() -> PyObject* {
        std::int64_t total = 0;
        for (const auto& part : held<HeldSnapshot>(self).snapshot.parts) {
            total += part->segment.derived_bytes() + part->dense_bytes();
        }
        return PyLong_FromLongLong(total);
    });
}

// Segment.survey(saturated, position): the contributions, without the idf, of the postings of each rank in a list.
PyObject* survey(PyObject* self, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 2, "survey");
        Segment& segment = *held<HeldSegment>(self).segment;
        const Array<const double> saturated(arguments[0], "saturated");
        Reference reference(saturated.span(), segment.arrays.terms.size());
        const Survey survey = segment.survey(reference, to_int(arguments[1]));
        return Py_BuildValue("(ffff)", survey.values[0], survey.values[1], survey.values[2], survey.values[3]);
    });
}

// Segment.find(position, document): the posting of a document in a list, from the list's first one; -1: there is none.
PyObject* find(PyObject* self, PyObject* const* values, Py_ssize_t given) {
    return guarded([&]() -> PyObject* {
        const Arguments arguments(values, given, 2, "find");
        Segment& segment = *held<HeldSegment>(self).segment;
        return PyLong_FromLongLong(segment.find(to_int(arguments[0]), to_int(arguments[1])));
    });
}

// Masks.surveyed(): how many lists were surveyed among the documents that pass.
PyObject* surveyed(PyObject* self, PyObject* const*, Py_ssize_t) {
    return guarded([&]() -> PyObject* { return PyLong_FromSize_t(held<HeldMasks>(self).masks.surveyed()); });
}

PyMethodDef functions[] = {
    method("segment", make_segment, "A segment as searches read it."),
    method("masks", make_masks, "Which documents of each part of a snapshot pass a filter."),
    method("links", make_links, "The links of a snapshot's documents to their neighbours."),
    method("dialogue", make_dialogue, "A strategy for dialogues over a snapshot."),
    method("snapshot", make_snapshot, "A snapshot as searches read it."),
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef segment_methods[] = {
    method("survey", survey, "The contributions of the best postings of a list."),
    method("find", find, "Where a document stands in a list."),
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef masks_methods[] = {
    method("surveyed", surveyed, "How many lists were surveyed."),
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef snapshot_methods[] = {
    method("search_texts", search_texts, "Answer a batch of texts."),
    method("search_terms", search_terms, "Answer a batch of term ids."),
    method("bytes", bytes, "Bytes of what was worked out for the segments so far."),
    {nullptr, nullptr, 0, nullptr},
};

template <class Held>
PyTypeObject* add_type(PyObject* module, const char* name, PyMethodDef* methods) {
    PyType_Slot slots[] = {
        {Py_tp_dealloc, reinterpret_cast<void*>(drop<Held>)},
        {methods == nullptr ? 0 : Py_tp_methods, methods},
        {0, nullptr},
    };
    PyType_Spec spec = {name, sizeof(Holder<Held>), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    PyObject* type = PyType_FromSpec(&spec);
    if (type == nullptr) return nullptr;
    if (PyModule_AddObjectRef(module, std::string(name).substr(std::string(name).rfind('.') + 1).c_str(), type) != 0) {
        return nullptr;
    }
    return reinterpret_cast<PyTypeObject*>(type);
}

}  // namespace

int add_search(PyObject* module) {
    segment_type = add_type<HeldSegment>(module, "fanrank.native._compiled.Segment", segment_methods);
    masks_type = add_type<HeldMasks>(module, "fanrank.native._compiled.Masks", masks_methods);
    links_type = add_type<HeldLinks>(module, "fanrank.native._compiled.Links", nullptr);
    dialogue_type = add_type<HeldDialogue>(module, "fanrank.native._compiled.Dialogue", nullptr);
    snapshot_type = add_type<HeldSnapshot>(module, "fanrank.native._compiled.Snapshot", snapshot_methods);
    const bool complete = segment_type != nullptr && masks_type != nullptr && links_type != nullptr &&
                          dialogue_type != nullptr;
    if (!complete || snapshot_type == nullptr) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace fanrank::python
