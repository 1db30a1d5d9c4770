"""Faults in the C++ extension."""

from __future__ import annotations

from .fault import Fault

NATIVE = "tests/cpu_fallback/test_native.py"
ONE_ANSWER = "tests/test_one_answer.py::test_every_road_equals_the_oracle"
TIME = "tests/search/test_time.py"

FAULTS = (
    Fault(
        "what lends must have nearly the k-th sum",
        "native/neighbours.hpp",
        "(hits.front().key + whole - 1) / whole;",
        "hits.front().key / (STEPS + 1);",
        "tests/search/test_neighbours.py::test_small_sums_together_beat_a_large_one",
    ),
    Fault(
        "the next hit must beat the k-th by two quanta",
        "native/score_loops.hpp",
        "FADES ? last : last + 1",
        "FADES ? last : last + 2",
        f"{NATIVE}::test_scores_one_quantum_apart",
    ),
    Fault(
        "a bound by the least factor",
        "native/search.cpp",
        "* part.largest) * SCALE",
        "* part.least) * SCALE",
        f"{NATIVE}::test_bounds_hold_after_writes",
    ),
    Fault(
        "the last posting of a tile is skipped",
        "native/score_loops.hpp",
        "for (std::int64_t p = list.tile_begin; p < list.tile_end; ++p) {\n            scores",
        "for (std::int64_t p = list.tile_begin; p + 1 < list.tile_end; ++p) {\n            scores",
        f"{NATIVE}::test_unread_postings_change_nothing",
    ),
    Fault(
        "ties of faded scores go to the younger document",
        "native/quickselect.hpp",
        "document < other.document)",
        "document > other.document)",
        ONE_ANSWER,
    ),
    Fault(
        "ties go to the younger document",
        "native/quickselect.hpp",
        "std::int64_t document_of(std::int64_t packed) { return std::int64_t{0xFFFFFFFF} - (packed & 0xFFFFFFFF); }",
        "std::int64_t document_of(std::int64_t packed) { return packed & 0xFFFFFFFF; }",
        ONE_ANSWER,
    ),
    Fault(
        "the age is rounded once",
        "native/decay.hpp",
        "const double age = (now - time) * rate;",
        "const double age = std::fma(now, rate, -time * rate);",
        f"{NATIVE}::test_ages_are_rounded_as_everywhere",
    ),
    Fault(
        "threads publish a threshold that ties do not reach",
        "native/score_loops.hpp",
        "known < last && !best.shared->compare_exchange_weak(known, last,",
        "known < last + 1 && !best.shared->compare_exchange_weak(known, last + 1,",
        f"{NATIVE}::test_scores_one_quantum_apart",
    ),
    Fault(
        "a group's bit is looked for in the wrong place",
        "native/segment.hpp",
        "presence[group >> 3] >> (group & 7) & 1",
        "presence[group >> 3] >> (group & 6) & 1",
        f"{NATIVE}::test_skips_find_every_posting_and_no_other",
    ),
    Fault(
        "a range ends before its end",
        "native/search.cpp",
        "std::upper_bound(times.begin(), times.end(), setting.until)",
        "std::lower_bound(times.begin(), times.end(), setting.until)",
        TIME,
    ),
    Fault(
        "deleted documents count in document frequencies",
        "native/snapshot.cpp",
        "total -= part->deleted_frequencies[found - gone.begin()];",
        "total -= 0;",
        ONE_ANSWER,
    ),
    Fault(
        "a deleted document may be a hit",
        "native/search.cpp",
        "if (!part.alive.empty()) accepted.alive = part.alive.data();",
        "",
        ONE_ANSWER,
    ),
    Fault(
        "two threads fill the dense rows of a segment",
        "native/snapshot.cpp",
        "const std::lock_guard<std::mutex> lock(mutex_);\n        auto row",
        "auto row",
        f"{NATIVE}::test_threads_may_meet_a_list_first_together",
        thread_sanitizer=True,
    ),
)
