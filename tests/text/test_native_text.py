"""Texts to term ids in compiled loops: the same ids as token by token, whatever the texts, calls and threads."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import borders

from fanrank import native
from fanrank.engine.text import analyzers
from fanrank.engine.text.analyzers import Analyzer, get_analyzer, word_recipe
from fanrank.engine.text.dispatch import choose_token_path, make_native
from fanrank.engine.text.vocabulary import TermIndexer, Vocabulary

if native.compiled is None:
    pytest.skip(native.reason, allow_module_level=True)

COMPILED = ("minimal", "stopword", "full", "nltk", "nltk-numbers", "full-numbers", "agent", "agent-numbers")
# So small that a few words make every table grow, and a few texts take several blocks and threads.
SMALL = {"slots": 2, "room": 1, "block": 9, "share": 1}

PIECES = (
    "the The running Ponies İstanbul ΟΔΟΣ ς cafe\u0301 café 東京タワー ไทย 👍🏽 3.14 ٣٤ m² don’t a–b 0·05 ±3 x\u2028y "
    "\u2010 \u2027\u2028 aaaaaaa bbbbbbbb ccccccccc dddddddddddddddd eeeeeeeeeeeeeeeee 47821 naïvely ββed \x00 a\x00b "
    "\ud800 c\udfffd \x1c \x85 \xa0 Kelvin Å the’s "
    "getHTTPHeader IDs 3PM snake_case __init__ E-47821 E‑47821 v1.2.3-rc.1 numpy-1.26.4 src/.env C:\\Users\\me a//b::c "
    "ana+x@mail.example.com 0x840784d1 \x1b[1;31mred\x1b[0m \x1b[Kx\x1b]0;t\x07y "
    "\x1b[ \x1b]u naïve_Café.py ＧｅｔＸ ﬁx ㎏ THÉ ðo Süd2 ไทยน้ำ๑ \u0e49ที่ ខ្មែរ မြန်မာ ລາວ"
)
WORDS = st.sampled_from(PIECES.split(" "))
LONG = st.builds(
    lambda letter, size: letter * size, st.sampled_from("a1éZ東"), st.sampled_from([7, 8, 9, 16, 255, 256])
)
# What the rules on names tell apart.
NAMES = st.text("aBs1_-+./\\@:\x1b[mKv é", max_size=24)
TEXTS = st.lists(NAMES | WORDS | LONG | st.text(max_size=8), max_size=8).map(" ".join) | st.text(
    st.characters(codec=None, exclude_categories=()), max_size=40
)
CALLS = st.lists(st.lists(TEXTS, max_size=5), min_size=1, max_size=4)


@pytest.fixture(autouse=True)
def compiled_loops_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FANRANK_BACKEND", raising=False)


def compiled(name: str, strings: tuple[str, ...] = (), **sizes: int) -> TermIndexer:
    indexer = TermIndexer(get_analyzer(name), Vocabulary(strings))
    assert indexer.native is not None
    if sizes:
        indexer.native = make_native(indexer.analyzer, **sizes)
        indexer.native.add_terms(strings)
    return indexer


def plain(name: str, strings: tuple[str, ...] = ()) -> TermIndexer:
    indexer = TermIndexer(get_analyzer(name), Vocabulary(strings))
    indexer.native = None
    return indexer


def knows_its_vocabulary(indexer: TermIndexer) -> None:
    strings = indexer.vocabulary.strings
    assert len(indexer.native) == len(strings)
    assert [indexer.native.find(string) for string in strings] == list(range(len(strings)))


def hold_equal(one: TermIndexer, other: TermIndexer, texts: list[str], threads: int = 1) -> None:
    for found, wanted in zip(one.encode_documents(texts, threads), other.encode_documents(texts), strict=True):
        assert found.dtype == wanted.dtype == np.int32
        np.testing.assert_array_equal(found, wanted)
    assert one.vocabulary.strings == other.vocabulary.strings
    assert one.vocabulary.ids == other.vocabulary.ids
    knows_its_vocabulary(one)


def queries_hold_equal(one: TermIndexer, other: TermIndexer, texts: list[str]) -> None:
    rows = [other.encode_query(text) for text in texts]
    for encoder in (one, other):
        terms, offsets = encoder.encode_queries(texts)
        assert (terms.dtype, offsets.dtype, offsets.shape) == (np.int32, np.int64, (len(texts) + 1,))
        assert [terms[offsets[i] : offsets[i + 1]].tolist() for i in range(len(texts))] == rows
    assert [one.encode_query(text) for text in texts] == rows


@pytest.mark.parametrize("name", COMPILED)
@settings(deadline=None, max_examples=12)
@given(CALLS, st.lists(TEXTS, max_size=4), st.integers(1, 3), st.integers(1, 40), st.sampled_from([2, 4, 4096]))
@example([["1" * 255 + "a", "1" * 300, "a" * 300, "a" * 255, "é" * 300, "b" * 256]], [""], 1, 9, 2)
@example([["", "", "the"], [], [""], ["\n", "a\n\nb"]], ["a\nb", ""], 2, 1, 2)
@example([["x" * size + " y" for size in range(60, 70)]], ["y" * 64, "y" * 63 + " z"], 3, 1, 2)
@example([["a\u2010b \u2027", "\u200fc\u2028d \ue010", "\u2011", "é\u2026"]], ["\u2010", "b\u2015a"], 1, 40, 4096)
def test_compiled_loops_are_the_plain_path(
    name: str, calls: list[list[str]], queries: list[str], threads: int, block: int, slots: int
) -> None:
    one = compiled(name, ("kept", "run"), **{**SMALL, "block": block, "slots": slots})
    other = plain(name, ("kept", "run"))
    for texts in calls:
        hold_equal(one, other, texts, threads)
        queries_hold_equal(one, other, queries + texts)
        queries_hold_equal(one, other, queries + texts)  # spellings that the first call remembered


@pytest.mark.parametrize(("sizes", "threads"), [({}, 2), (SMALL, 3), ({"multiplier": 1}, 1), ({"spellings": 50}, 2)])
def test_many_words_grow_the_tables(sizes: dict[str, int], threads: int) -> None:
    many = 20_000 if sizes in ({}, SMALL) else 2_000
    texts = [
        " ".join(f"w{i * 7919 % 50021}x{'y' * (i % 23)} é{i % 5003}" for i in range(n, n + 40))
        for n in range(many // 50)
    ]
    texts += [" ".join(f"grown{i}ing" for i in range(n, n + 100)) for n in range(0, many, 100)]
    one, other = compiled("nltk", **sizes), plain("nltk")
    for part in (texts[:10], texts, texts[::-1]):
        hold_equal(one, other, part, threads)
    assert one.native.spellings() > min(many // 2, 50)


def test_stop_words_of_several_tokens_drop_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    words = frozenset(["the", "don't", "über"])
    borders.shrink(monkeypatch, LUCENE_ENGLISH=words)
    monkeypatch.setitem(analyzers._STOP_WORDS, "stopword", words)
    one, other = compiled("stopword"), plain("stopword")
    hold_equal(one, other, ["Don't the T-shirts über, über alles; don"])
    assert one.vocabulary.strings == ["alles", "don", "shirts", "t"]


def test_spellings_of_queries_are_remembered_where_their_terms_are_known() -> None:
    one, other = compiled("nltk", ("kept", "run")), plain("nltk", ("kept", "run"))
    for _ in range(3):
        queries_hold_equal(one, other, ["the runs", "kept unknown running", "x" * 300])
        assert one.native.spellings() == 3
    # What queries spell is not remembered as dropped: a document may bring it.
    hold_equal(one, other, ["unknown to the runner"])
    one.forget(1)
    other.forget(1)
    queries_hold_equal(one, other, ["the runs", "kept unknown"])
    # The number of a forgotten term becomes that of another.
    hold_equal(one, other, ["apes"])
    queries_hold_equal(one, other, ["the runs", "kept unknown apes"])


@pytest.mark.parametrize("sizes", [{}, SMALL], ids=str)
def test_forget_undoes_additions_in_the_tables_too(sizes: dict[str, int]) -> None:
    one, other = compiled("nltk", **sizes), plain("nltk")
    for indexer in (one, other):
        indexer.encode_documents(["ant cat running chimpanzees"])
        indexer.encode_documents(["dog bee hippopotamuses naïveté"])
        indexer.forget(3)
    knows_its_vocabulary(one)
    queries_hold_equal(one, other, ["dog cat runs ant hippopotamus", "bee naïveté"])
    hold_equal(one, other, ["eel cat dog running hippopotamus"])
    for indexer in (one, other):
        indexer.forget(0)
    assert one.native.spellings() == 0
    queries_hold_equal(one, other, ["eel cat"])


def raising(error: BaseException) -> Callable[[str], list[str]]:
    """An analyzer of chunks beyond ASCII that fails at "ö"."""

    def analyse(text: str) -> list[str]:
        if "ö" in text:
            raise error
        return [text]

    return analyse


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_failed_call_leaves_nothing_behind(error: BaseException, threads: int) -> None:
    one, other = compiled("nltk"), plain("nltk")
    one.native = native.compiled.Analysis(raising(error), "nltk", True, ["the"], **SMALL)
    hold_equal(one, other, ["ant é"])
    spellings = one.native.spellings()
    for texts in (["bee cat", "é ü", "öl", "dog"], ["ö"]):
        with pytest.raises(type(error)):
            one.encode_documents(texts, threads)
        assert (one.vocabulary.strings, one.vocabulary.ids) == (["ant", "é"], {"ant": 0, "é": 1})
        assert one.native.spellings() == spellings
        knows_its_vocabulary(one)
    with pytest.raises(type(error)):
        one.encode_queries(["ant", "ö"])
    queries_hold_equal(one, other, ["bee ant dog", "ü é"])
    hold_equal(one, other, ["cat bee ü ant"], threads)


def test_an_item_that_is_no_string_is_named() -> None:
    one = compiled("nltk", ("ant",))
    for texts, position, kind in (([None], 0, "NoneType"), (["x", 3], 1, "int"), (("x", "é", b"y"), 2, "bytes")):
        for call in (one.encode_documents, one.encode_queries):
            with pytest.raises(TypeError, match=f"text {position} is no string but of <class '{kind}'>"):
                call(texts)
    for call in (one.encode_documents, one.encode_queries):
        with pytest.raises(TypeError):
            call(3)
    assert one.vocabulary.strings == ["ant"]
    knows_its_vocabulary(one)


def test_a_second_write_at_the_same_time_is_refused() -> None:
    refused = []

    def analyse(text: str) -> list[str]:
        with pytest.raises(RuntimeError, match="another write of this vocabulary is under way") as error:
            one.native.encode_documents(["bee"], 1)
        refused.append(str(error.value))
        return [text]

    one = compiled("nltk")
    one.native = native.compiled.Analysis(analyse, "nltk", True, [])
    one.encode_documents(["é"])
    assert len(refused) == 1
    assert one.vocabulary.strings == ["é"]
    one.encode_documents(["bee"])
    assert one.vocabulary.strings == ["é", "bee"]


@pytest.mark.parametrize("slots", [2, 4096])
def test_chunks_with_one_hash_are_told_apart(slots: int) -> None:
    """With a multiplier of 1 every short token meets in the first slots, and many long ones have one hash."""
    texts = [f"{a}{b}{'z' * size}" for a in "abcdefgh" for b in "0123456789" for size in (0, 5, 6, 14, 20)]
    # The hash of a longer chunk is that of its numbers, each of eight bytes, joined by exclusive or.
    eights = ["aaaaaaaa", "bbbbbbbb", "cccccccc"]
    texts += [a + b + c for a in eights for b in eights for c in eights]
    texts += ["aaaaaaaaxxxxaaaatttttttt", "bbbbbbbbxxxxbbbbtttttttt"]
    one, other = compiled("minimal", slots=slots, multiplier=1), plain("minimal")
    for _ in range(2):
        hold_equal(one, other, texts)
        terms, documents = one.encode_documents(texts)
        assert [one.vocabulary.strings[term] for term in terms.tolist()] == texts
        assert documents.tolist() == list(range(len(texts)))
    queries_hold_equal(one, other, texts)


@pytest.mark.parametrize("sizes", [{}, SMALL], ids=str)
@pytest.mark.parametrize("size", [10, 4000], ids=["with the lock", "without the lock"])
def test_queries_are_read_while_documents_are_written(size: int, sizes: dict[str, int]) -> None:
    one = compiled("nltk", **sizes)
    first = [f"alpha{i} common{i % 7} naïve{i % 5} hippopotamus{i}" for i in range(size)]
    one.encode_documents(first)
    wanted = one.encode_queries(first)
    barrier, stop = threading.Barrier(3), threading.Event()

    def read() -> int:
        barrier.wait(300)
        times = 0
        while not stop.is_set() or not times:
            for found, right in zip(one.encode_queries(first), wanted, strict=True):
                np.testing.assert_array_equal(found, right)
            assert one.encode_query(first[3]) == wanted[0][wanted[1][3] : wanted[1][4]].tolist()
            times += 1
        return times

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        barrier.wait(300)
        try:
            for call in range(30):
                before = len(one.vocabulary)
                one.encode_documents([f"beta{call}x{i} commonly{i} rhinoceroses{call}x{i}" for i in range(400)], 2)
                if call % 3 == 0:
                    one.forget(before)
        finally:
            stop.set()
        assert all(reader.result() for reader in readers)
    knows_its_vocabulary(one)


def test_paths_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COMPILED:
        assert choose_token_path(get_analyzer(name)).name == "compiled"
        assert TermIndexer(get_analyzer(name), Vocabulary()).token_path.name == "compiled"
    mine = Analyzer("nltk", get_analyzer("nltk").tokenize, get_analyzer("nltk").normalize)
    assert word_recipe(mine) is None
    own = [Analyzer(name, str.split, str) for name in ("mine", "nltk-de", "minimal-german", "full+x", "full-numbers")]
    for analyzer in (mine, *own, *map(get_analyzer, ("lucene", "opsem", "nltk+compounds"))):
        assert choose_token_path(analyzer).name == "plain"
        assert analyzer.name in choose_token_path(analyzer).reason
        assert TermIndexer(analyzer, Vocabulary()).native is None
    monkeypatch.setenv("FANRANK_BACKEND", "numpy")
    assert str(choose_token_path(get_analyzer("nltk"))) == "plain (FANRANK_BACKEND is numpy)"
    assert TermIndexer(get_analyzer("nltk"), Vocabulary()).native is None
    monkeypatch.setenv("FANRANK_BACKEND", "native")
    assert choose_token_path(get_analyzer("nltk")).name == "compiled"
    monkeypatch.setattr(native, "compiled", None)
    monkeypatch.setattr(native, "reason", "the extension was not built")
    assert str(choose_token_path(get_analyzer("nltk"))) == "plain (the extension was not built)"
    assert TermIndexer(get_analyzer("nltk"), Vocabulary()).native is None


@pytest.mark.extended
@pytest.mark.parametrize("part", [*range(0, 0x32000, 0x1000), 0xE0000])
def test_both_statements_of_agent_agree_on_every_character(part: int) -> None:
    analyzer = get_analyzer("agent")
    indexer = TermIndexer(analyzer, Vocabulary(()))
    letters = map(chr, range(part, part + 0x1000))
    texts = [text for c in letters for text in (c, f"aB{c}Cd", f"日{c}_{c}本")]
    found: list[list[str]] = [[] for _ in texts]
    for term, document in zip(*map(list, indexer.encode_documents(texts)), strict=True):
        found[document].append(indexer.vocabulary.strings[term])
    for text, terms in zip(texts, found, strict=True):
        assert terms == analyzer(text), ascii(text)
