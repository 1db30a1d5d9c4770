"""Texts to term ids in compiled blocks: the same ids as token by token, whatever the texts, calls and threads."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import borders

from fanrank.engine.text import analyzers
from fanrank.engine.text import dispatch as dispatch
from fanrank.engine.text.analyzers import MAX_LENGTH, Analyzer, get_analyzer, word_recipe
from fanrank.engine.text.dispatch import TokenPath, choose_token_path
from fanrank.engine.text.vocabulary import TermIndexer, Vocabulary

blocks = pytest.importorskip("fanrank.engine.text.blocks", reason="needs numba")

DATA = Path(os.environ.get("FANRANK_DATA", Path(__file__).parents[3] / "shared" / "data"))
COMPILED = ("minimal", "stopword", "full", "nltk", "nltk-numbers", "full-numbers")

PIECES = (
    "the The running Ponies İstanbul ΟΔΟΣ ς cafe\u0301 café 東京タワー ไทย 👍🏽 3.14 ٣٤ m² don’t a–b 0·05 ±3 x\u2028y "
    "\u2010 \u2027\u2028 aaaaaaa bbbbbbbb ccccccccc dddddddddddddddd eeeeeeeeeeeeeeeee 47821 naïvely ββed \x00 a\x00b "
    "\ud800 c\udfffd \x1c \x85 \xa0 Kelvin Å the’s"
)
WORDS = st.sampled_from(PIECES.split(" "))
LONG = st.builds(
    lambda letter, size: letter * size, st.sampled_from("a1éZ東"), st.sampled_from([7, 8, 9, 16, 255, 256])
)
TEXTS = st.lists(WORDS | LONG | st.text(max_size=8), max_size=8).map(" ".join) | st.text(
    st.characters(codec=None, exclude_categories=()), max_size=40
)
CALLS = st.lists(st.lists(TEXTS, max_size=5), min_size=1, max_size=4)


@pytest.fixture(autouse=True)
def every_call_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FANRANK_BACKEND", raising=False)
    borders.shrink(monkeypatch, LEAST_CHARACTERS=0, LOADING_CHARACTERS=0)


def compiled(name: str, strings: tuple[str, ...] = ()) -> TermIndexer:
    encoder = TermIndexer(get_analyzer(name), Vocabulary(strings))
    assert encoder.token_path.name == "compiled"
    return encoder


def plain(name: str, strings: tuple[str, ...] = ()) -> TermIndexer:
    encoder = TermIndexer(get_analyzer(name), Vocabulary(strings))
    encoder.__dict__["token_path"] = TokenPath("plain", "the test's choice")
    return encoder


def hold_equal(one: TermIndexer, other: TermIndexer, texts: list[str], threads: int = 1) -> None:
    for found, wanted in zip(one.encode_documents(texts, threads), other.encode_documents(texts), strict=True):
        assert found.dtype == wanted.dtype == np.int32
        np.testing.assert_array_equal(found, wanted)
    assert one.vocabulary.strings == other.vocabulary.strings
    assert one.vocabulary.ids == other.vocabulary.ids


def queries_hold_equal(one: TermIndexer, other: TermIndexer, texts: list[str]) -> None:
    rows = [other.encode_query(text) for text in texts]
    for encoder in (one, other):
        terms, offsets = encoder.encode_queries(texts)
        assert (terms.dtype, offsets.dtype, offsets.shape) == (np.int32, np.int64, (len(texts) + 1,))
        assert [terms[offsets[i] : offsets[i + 1]].tolist() for i in range(len(texts))] == rows
    assert [one.encode_query(text) for text in texts] == rows


@pytest.mark.parametrize("name", COMPILED)
@settings(deadline=None)
@given(CALLS, st.lists(TEXTS, max_size=4), st.integers(1, 3), st.integers(1, 40))
@example([["1" * 255 + "a", "1" * 300, "a" * 300, "a" * 255, "é" * 300, "b" * 256]], [""], 1, 9)
@example([["", "", "the"], [], [""], ["\n", "a\n\nb"]], ["a\nb", ""], 2, 1)
def test_blocks_are_the_plain_road(
    name: str, calls: list[list[str]], queries: list[str], threads: int, block: int
) -> None:
    with borders.shrunken({"blocks.BLOCK": block}):
        one, other = compiled(name, ("kept", "run")), plain(name, ("kept", "run"))
        for texts in calls:
            hold_equal(one, other, texts, threads)
            queries_hold_equal(one, other, queries + texts)


@given(st.lists(TEXTS, max_size=5))
@settings(deadline=None)
def test_roads_take_turns_in_one_encoder(texts: list[str]) -> None:
    one, other = compiled("nltk"), plain("nltk")
    for number, text in enumerate(texts):
        one.__dict__["token_path"] = TokenPath("compiled" if number % 2 else "plain", "")
        hold_equal(one, other, [text, *texts[:number]])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_many_words_grow_the_tables(threads: int) -> None:
    texts = [
        " ".join(f"w{i * 7919 % 50021}x{'y' * (i % 23)} é{i % 5003}" for i in range(n, n + 40)) for n in range(400)
    ]
    texts += [" ".join(f"grown{i}ing" for i in range(n, n + 100)) for n in range(0, 20_000, 100)]
    one, other = compiled("nltk"), plain("nltk")
    for part in (texts[:10], texts, texts[::-1]):
        hold_equal(one, other, part, threads)
    assert one._table is not None
    assert one._table.size > 1 << 14


def test_a_table_beyond_its_bound_starts_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, MAX_CACHED_TOKENS=3)
    one, other = compiled("minimal"), plain("minimal")
    sizes = []
    for text in ("ant bee cat dog", "ant eel", "dog fox bee", "ant", "a b c d e f", "a"):
        hold_equal(one, other, [text])
        sizes.append(one._table.size)  # type: ignore[union-attr]
    assert sizes == [4, 2, 5, 1, 7, 1]


def test_stop_words_of_several_tokens_drop_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    words = frozenset(["the", "don't", "über"])
    borders.shrink(monkeypatch, LUCENE_ENGLISH=words)
    monkeypatch.setitem(analyzers._STOP_WORDS, "stopword", words)
    one, other = compiled("stopword"), plain("stopword")
    hold_equal(one, other, ["Don't the T-shirts über, über alles; don"])
    assert one.vocabulary.strings == ["alles", "don", "shirts", "t"]


def test_queries_alone_make_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(blocks.TokenTable):  # type: ignore[misc]
        def __init__(self, analyzer: Analyzer) -> None:
            made.append(analyzer.name)
            super().__init__(analyzer)

    monkeypatch.setattr(blocks, "TokenTable", Counted)
    one, other = compiled("nltk", ("kept", "run")), plain("nltk", ("kept", "run"))
    for _ in range(3):
        queries_hold_equal(one, other, ["the runs", "kept unknown"])
    assert made == ["nltk"]
    # What queries spell is not remembered as dropped: a document may bring it.
    hold_equal(one, other, ["unknown to the runner"])
    one.forget(2)
    other.forget(2)
    queries_hold_equal(one, other, ["the runs", "kept unknown"])
    assert made == ["nltk", "nltk"]


def test_only_spellings_of_bounded_length_are_kept() -> None:
    one = compiled("minimal")
    one.encode_documents(["a" * MAX_LENGTH, "b" * (MAX_LENGTH + 1), "é" * 200, "short"])
    assert one._table is not None
    assert one._table.size == 2


def test_forget_undoes_additions_in_the_table_too() -> None:
    one, other = compiled("nltk"), plain("nltk")
    for encoder in (one, other):
        encoder.encode_documents(["ant cat running"])
        encoder.encode_documents(["dog bee"])
        encoder.forget(2)
    queries_hold_equal(one, other, ["dog cat runs ant", "bee"])
    hold_equal(one, other, ["eel cat dog running"])


def test_a_failed_call_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = compiled("nltk"), plain("nltk")
    hold_equal(one, other, ["ant"])
    with monkeypatch.context() as patch:
        patch.setattr(blocks.loops, "settle", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            one.encode_documents(["bee cat"])
    assert one.vocabulary.strings == ["ant"]
    assert one.vocabulary.ids == {"ant": 0}
    queries_hold_equal(one, other, ["bee ant"])
    hold_equal(one, other, ["cat bee ant"])
    for wrong in ([None], ["x", 3]):
        with pytest.raises((TypeError, AttributeError)):
            one.encode_documents(wrong)  # type: ignore[list-item]
    assert one.vocabulary.strings == ["ant", "bee", "cat"]


def test_chunks_with_one_hash_are_told_apart() -> None:
    """With a multiplier of 1 every short token meets in the first slots, and equal hashes of long ones are made."""
    table = blocks.TokenTable(get_analyzer("minimal"))
    table.multiplier = np.uint64(1)
    texts = [f"{a}{b}{'z' * size}" for a in "abcdefgh" for b in "0123456789" for size in (0, 5, 6, 14, 20)]
    vocabulary = Vocabulary()
    for _ in range(2):
        encoding = blocks.Encoding(table, texts)
        vocabulary.extend(encoding.new(vocabulary.ids))
        terms, documents, _ = encoding.settle(vocabulary.ids, remember=True)
        assert [vocabulary.strings[term] for term in terms.tolist()] == texts
        assert documents.tolist() == list(range(len(texts)))
    # Two long chunks whose hashes are the same, whatever the multiplier does with the first number of eight bytes.
    store = np.array([0, 16, 1, 2, 16, 1, 3], np.uint64)
    slots = np.zeros((8, 2), np.uint64)
    blocks.loops._put(slots, np.uint64(77), np.uint64(1 << 32 | 5), np.uint64(1), np.uint64(61))
    find = blocks.loops._find_long
    assert find(slots, store, np.uint64(77), store, 1, np.uint64(1), np.uint64(61)) == 5
    assert find(slots, store, np.uint64(77), store, 4, np.uint64(1), np.uint64(61)) == blocks.loops.UNKNOWN


def test_half_an_entry_is_no_entry() -> None:
    key, multiplier, shift = np.uint64(77), np.uint64(1), np.uint64(61)
    store = np.array([0, 16, 1, 2], np.uint64)
    for slot, half in ((0, key), (1, np.uint64(0xFFFFFFFF << 32 | 5)), (1, np.uint64(1 << 32 | 5))):
        slots = np.zeros((8, 2), np.uint64)
        slots[(key * multiplier) >> shift, slot] = half
        assert blocks.loops._find_short(slots, key, multiplier, shift) == blocks.loops.UNKNOWN
        assert blocks.loops._find_long(slots, store, key, store, 1, multiplier, shift) == blocks.loops.UNKNOWN
    slots[(key * multiplier) >> shift] = key, 9 << 32 | 5
    assert blocks.loops._find_long(slots, store, key, store, 1, multiplier, shift) == blocks.loops.UNKNOWN


def test_queries_are_read_while_documents_are_written() -> None:
    one = compiled("nltk")
    first = [f"alpha{i} common{i % 7} naïve{i % 5}" for i in range(500)]
    one.encode_documents(first)
    wanted = one.encode_queries(first)
    stop = threading.Event()

    def read() -> int:
        times = 0
        while not stop.is_set() or not times:
            for found, right in zip(one.encode_queries(first), wanted, strict=True):
                np.testing.assert_array_equal(found, right)
            assert one.encode_query(first[3]) == wanted[0][wanted[1][3] : wanted[1][4]].tolist()
            times += 1
        return times

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for call in range(30):
                one.encode_documents([f"beta{call}x{i} commonly{i}" for i in range(400)], threads=2)
        finally:
            stop.set()
        assert all(reader.result() for reader in readers)


def corpus(name: str) -> Iterator[str]:
    if name == "sgd":
        with gzip.open(DATA / "sgd" / "dev.turns.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["utterance"]
    elif name == "locomo":
        for sample in json.loads((DATA / "locomo" / "locomo10.json").read_text()):
            for value in sample["conversation"].values():
                yield from (turn["text"] for turn in value if isinstance(value, list))
    else:
        with (DATA / name / "corpus.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                document = json.loads(line)
                yield f"{document.get('title', '')} {document['text']}"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["scifact", "sgd", "locomo", "cranfield"])
def test_real_texts(name: str, threads: int) -> None:
    if not (DATA / name).is_dir():
        pytest.skip(f"no folder {DATA / name}; set FANRANK_DATA")
    texts = list(corpus(name))
    one, other = compiled("nltk"), plain("nltk")
    for part in (texts[: len(texts) // 2], texts):
        hold_equal(one, other, part, threads)
    queries_hold_equal(one, other, texts[::50])


def test_roads_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FANRANK_BACKEND", raising=False)
    for name in COMPILED:
        assert choose_token_path(get_analyzer(name)).name == "compiled"
    mine = Analyzer("nltk", get_analyzer("nltk").tokenize, get_analyzer("nltk").normalize)
    assert word_recipe(mine) is None
    own = [Analyzer(name, str.split, str) for name in ("mine", "nltk-de", "minimal-german", "full+x", "full-numbers")]
    for analyzer in (mine, *own, *map(get_analyzer, ("lucene", "opsem", "nltk+compounds"))):
        assert choose_token_path(analyzer).name == "plain"
        assert analyzer.name in choose_token_path(analyzer).reason
    monkeypatch.setenv("FANRANK_BACKEND", "numpy")
    assert str(choose_token_path(get_analyzer("nltk"))) == "plain (FANRANK_BACKEND is numpy)"
    monkeypatch.setenv("FANRANK_BACKEND", "numba")
    assert choose_token_path(get_analyzer("nltk")).name == "compiled"
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda name: None)
    assert "no numba" in choose_token_path(get_analyzer("nltk")).reason


def test_small_calls_load_no_compiler() -> None:
    code = (
        "import sys; from fanrank.engine.text.vocabulary import TermIndexer, Vocabulary; "
        "from fanrank.engine.text.analyzers import get_analyzer; e = TermIndexer(get_analyzer('full'), Vocabulary()); "
        "e.encode_documents(['Running past the end'] * 100, threads=2); e.encode_queries(['an end'] * 20); "
        "print(e.token_path.name, sorted({'numba', 'nltk'} & set(sys.modules)))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "FANRANK_BACKEND"}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2] / "src")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.strip() == "compiled []"
