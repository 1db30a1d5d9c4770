"""Strings as one block, ids found by hash, filters in codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine import columns
from fanrank.engine.columns import (
    ABSENT,
    Ids,
    Strings,
    compile_filter,
    concatenate_categories,
    encode_categories,
    passing,
    stable_hash,
)
from fanrank.engine.records import CATEGORIES
from fanrank.engine.vocabulary import Vocabulary

strings = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=6)


@settings(deadline=None)
@given(st.lists(strings, min_size=1, max_size=4))
def test_strings(parts: list[list[str]]) -> None:
    column = Strings.concatenate([Strings.of(part) for part in parts])
    expected = [string for part in parts for string in part]
    assert column.tolist() == expected
    assert [column[position] for position in range(len(column))] == expected
    assert column.block.tobytes() == "".join(expected).encode()


def test_a_window_of_a_larger_column() -> None:
    whole = Strings.of(["ä", "", "bc", "d"])
    window = Strings(whole.block, whole.offsets[1:4])
    assert (len(window), window.tolist(), window[1]) == (2, ["", "bc"], "bc")
    assert Strings.concatenate([window, whole]).tolist() == ["", "bc", "ä", "", "bc", "d"]


def test_hashes_are_the_same_in_every_process() -> None:
    # Saved indexes hold these numbers.
    assert (stable_hash(""), stable_hash("r1")) == (0xB4B2797457A0A6E4, 0x30BD695B0C8ADD83)


ids = st.lists(st.sampled_from([f"r{n}" for n in range(30)]), unique=True, max_size=20)


@settings(deadline=None)
@given(ids, st.integers(0, 20), st.sampled_from([1, 3, 2**64]))
def test_ids_are_found_even_where_hashes_collide(names: list[str], cut: int, buckets: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "stable_hash", lambda string: stable_hash(string) % buckets)
        column = Ids.concatenate([Ids.of(names[:cut]), Ids.of(names[cut:])])
        assert (np.diff(column.hashes.astype(object)) >= 0).all()
        for position in range(30):
            name = f"r{position}"
            assert column.find(name) == (names.index(name) if name in names else None)
        asked = [f"r{n}" for n in range(0, 30, 7)]
        hashes = np.array([stable_hash(name) % buckets for name in asked], dtype=np.uint64)
        assert column.find_any(asked, hashes) == next((name for name in asked if name in names), None)


def vocabularies() -> dict[str, Vocabulary]:
    return {name: Vocabulary() for name in CATEGORIES}


def test_categories() -> None:
    values = vocabularies()
    records = [fr.Record("0", "", role="user"), fr.Record("1", ""), fr.Record("2", "", role="tool", tool="ls")]
    first = encode_categories(records, values)
    assert {name: codes.tolist() for name, codes in first.items()} == {
        "role": [0, ABSENT, 1],
        "tool": [ABSENT, ABSENT, 0],
    }
    second = encode_categories([fr.Record("3", "", role="tool", session="s")], values)
    assert second["role"].tolist() == [1]
    both = concatenate_categories([first, second], [3, 1])
    assert {name: codes.tolist() for name, codes in both.items()} == {
        "role": [0, ABSENT, 1, 1],
        "tool": [ABSENT, ABSENT, 0, ABSENT],
        "session": [ABSENT, ABSENT, ABSENT, 0],
    }
    assert {codes.dtype for codes in both.values()} == {np.dtype(np.int32)}


def test_filters_have_one_form() -> None:
    values = vocabularies()
    for name in ("s", "t"):
        values["session"].add(name)
    values["role"].add("user")

    def compiled(accepted: Any) -> columns.Filter:
        return compile_filter(fr.Query("x", filter=accepted), values)

    assert compiled(None) == compiled({}) == ()
    assert compiled({"session": "t"}) == compiled({"session": ["t"]}) == (("session", (1,)),)
    assert compiled({"session": ["t", "s", "t"]}) == compiled({"session": ("s", "t")}) == (("session", (0, 1)),)
    assert compiled({"session": None}) == (("session", (ABSENT,)),)
    assert compiled({"session": ["nobody"]}) == compiled({"session": []}) == (("session", ()),)
    one, other = {"session": "s", "role": "user"}, {"role": "user", "session": "s"}
    assert compiled(one) == compiled(other) == (("role", (0,)), ("session", (0,)))


def test_passing() -> None:
    codes = {"role": np.array([0, ABSENT, 1, 0], dtype=np.int32)}
    assert passing((), codes, 4).tolist() == [True] * 4
    assert passing((("role", (0,)),), codes, 4).tolist() == [True, False, False, True]
    assert passing((("role", (ABSENT, 1)),), codes, 4).tolist() == [False, True, True, False]
    assert passing((("role", ()),), codes, 4).tolist() == [False] * 4
    # A segment without the column holds documents without a value.
    assert passing((("tool", (0,)),), codes, 4).tolist() == [False] * 4
    assert passing((("tool", (ABSENT,)),), codes, 4).tolist() == [True] * 4
    assert passing((("role", (0,)), ("tool", (0,))), codes, 4).tolist() == [False] * 4


def test_every_column_filters_and_columns_combine() -> None:
    records = [
        fr.Record(f"{name}-{value}", "word", **{name: value, "agent" if name == "role" else "role": "other"})
        for name in CATEGORIES
        for value in ("one", "two")
    ]
    engine = fr.Engine.from_records(records)
    for name in CATEGORIES:
        for value in ("one", "two"):
            hits = engine.search([fr.Query("word", filter={name: value})], 20)
            assert [i for i, _ in hits[0]] == [f"{name}-{value}"]
    both = engine.search([fr.Query("word", filter={"tool": ["one", "two"], "role": "other"})], 20)
    assert [i for i, _ in both[0]] == ["tool-one", "tool-two"]
    assert engine.search([fr.Query("word", filter={"tool": "one", "agent": "other"})], 20).counts.tolist() == [0]
