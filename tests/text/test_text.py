"""Analyzers (SPEC A025 to A028, B015, C007, X18, A129, R10, R40), beside the plain loops of support/plain_text.py."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders
from support.evaluations import needs
from support.plain_text import PLAIN

from fanrank import native
from fanrank.engine.errors import ParameterError
from fanrank.engine.text.analyzers import ANALYZERS, DROPPED, MAX_LENGTH, Analyzer, get_analyzer
from fanrank.engine.text.vocabulary import TermIndexer, Vocabulary

NAMES = (*ANALYZERS, "nltk-numbers", "nltk+compounds", "full+compounds-numbers", "lucene-numbers", "opsem-numbers")

# Texts that matter to at least one analyzer, mixed with anything at all, lone surrogates included.
WORDS_OF_NOTE = """the running Ponies Tesla's ΟΔΟΣ İstanbul cafe\u0301 THÉ 東京 ไทยน้ำ๑ 👍🏽 e-mail 3.14 _ ٣٤"""
PIECES = st.sampled_from(WORDS_OF_NOTE.split())
TEXTS = st.lists(PIECES | st.text(max_size=8), max_size=12).map(" ".join) | st.text(
    st.characters(codec=None, exclude_categories=()), max_size=60
)


def test_names_are_canonical_and_unknown_ones_are_named() -> None:
    for name in ANALYZERS:
        assert get_analyzer(name).name == name
    assert get_analyzer("full", drop_numeric=True).name == "full-numbers"
    assert get_analyzer("nltk-numbers+compounds").name == "nltk+compounds-numbers"
    assert get_analyzer(get_analyzer("nltk"), compounds=True) is get_analyzer("nltk+compounds")
    mine = Analyzer("mine", str.split, lambda token: token or None)
    assert get_analyzer(mine) is mine
    for wrong in ("porter", "", "nltk ", "NLTK", "nltk+numbers", None, 3):
        with pytest.raises(ParameterError, match="minimal, stopword, full, nltk, lucene, opsem, agent"):
            get_analyzer(wrong)  # type: ignore[arg-type]
    for near in ("spanish", "snowball:spansh"):
        with pytest.raises(ParameterError, match=r"did you mean '(snowball:)?spanish'"):
            get_analyzer(near)
    for base in ("lucene", "opsem", "agent", "snowball:german"):
        with pytest.raises(ParameterError, match="compounds"):
            get_analyzer(base, compounds=True)


@pytest.mark.parametrize(
    ("name", "text", "terms"),
    [
        # A025: each mode adds to the one before it
        ("minimal", "The Ponies were running, generally!", "the ponies were running generally"),
        ("stopword", "The Ponies were running, generally!", "ponies were running generally"),
        ("full", "The Ponies were running, generally!", "poni were run generalli"),
        ("nltk", "The Ponies were running, generally!", "poni run gener"),
        ("lucene", "The Ponies were running, generally!", "poni were run gener"),
        ("opsem", "The Ponies were running, generally!", "ponies were running generally"),
        # X18, B015: digits and identifiers stay findable, whole or by each part
        *[(name, "Badge 47821 or E-47821, JIRA-9921", "badg 47821 e 47821 jira 9921") for name in ("nltk", "lucene")],
        ("full", "Badge 47821 or E-47821, JIRA-9921", "badge 47821 e 47821 jira 9921"),
        ("minimal", "E-47821, JIRA-9921", "e 47821 jira 9921"),
        ("opsem", "Badge 47821 or E-47821, JIRA-9921", "badge 47821 e-47821 jira-9921"),
        ("nltk+compounds", "E-47821, JIRA-9921", "e 47821 jira 9921 e47821 jira9921"),
        # C007 with X18's switch
        ("full-numbers", "Hello World! Testing 123.", "hello world test"),
        ("nltk-numbers", "Hello World! Testing 123.", "hello world test"),
        ("nltk", "Hello World! Testing 123.", "hello world test 123"),
        ("lucene-numbers", "3.14 4x4 1,000 Ⅷ 三 👍 v2", "4x4 三 👍 v2"),
        # A129: tickers, possessives, compounds
        ("nltk", "Tesla's and Tesla’s 0700.HK", "tesla tesla 0700 hk"),
        ("lucene", "Tesla's and TESLA’S dogs' 0700.HK", "tesla tesla dog 0700 hk"),
        ("lucene", "it's James＇s O'Neil's", "jame o'neil"),
        ("nltk", "$AAPL BRK.B 401(k)", "aapl brk b 401 k"),
        ("lucene", "$AAPL BRK.B 401(k)", "aapl brk.b 401 k"),
        ("minimal+compounds", "$AAPL BRK.B 401(k) 0700.HK", "aapl brk b 401 k 0700 hk brkb 401k 0700hk"),
        ("minimal+compounds", "3.14 10.0.0.1 v1.2. End (a) x(abc)", "3 14 10 0 0 1 v1 2 end a x abc"),
        ("nltk+compounds", "e‑mails state-of-the-art", "e mail state art email stateoftheart"),
        # R10: two characters are one too few, thirty-one the most
        ("opsem", "He's at uk's UK " + "z" * 40, "he's uk's " + "z" * 31 + " zzzzzzzzz"),
        # every script, one form
        ("minimal", "Ünïcode ΟΔΟΣ οδος İstanbul cafe\u0301 हिन्दी m²", "ünïcode οδοσ οδοσ istanbul café हिन्दी m²"),
        ("minimal", "snake_case a\x00b\ud800c – “d”\u2003e", "snake case a b c d e"),
        ("minimal", "東京タワー ไทย 한국어", "東京タワー ไทย 한국어"),
        ("lucene", "東京タワーは高い ภาษาไทย 한국어 👩‍💻🇩🇪🇫🇷 ❤️ ©", "東 京 タワー は 高 い ภาษาไทย 한국어 👩‍💻 🇩🇪 🇫🇷 ❤️"),
        ("lucene", "_ __ \u203f _a_ d\x00b\ud800c", "_a_ d b c"),
        *[(name, text, "") for name in NAMES for text in ("", " \n", "—!?\x00\ud800", "\u0301")],
    ],
)
def test_terms(name: str, text: str, terms: str) -> None:
    assert get_analyzer(name)(text) == (terms.split(" ") if terms else [])


# The rules of UAX #29 that decide what a word is, by number, on the characters its own test file uses.
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("AAA A:A A::A A:", ["aaa", "a:a", "a", "a", "a"]),  # WB5, WB6, WB7
        ("a'a a’a a.a a·a a'. a,a", ["a'a", "a’a", "a.a", "a·a", "a", "a", "a"]),
        ("א' א'a א'1 א\"א א\"a", ["א'", "א'a", "א'", "1", 'א"א', "א", "a"]),  # WB7a, WB7b, WB7c
        ("a00a 1a", ["a00a", "1a"]),  # WB8, WB9, WB10
        ("0,0 0.0 0'0 0;0 0,,0 0:0 0,", ["0,0", "0.0", "0'0", "0;0", "0", "0", "0", "0", "0"]),  # WB11, WB12
        ("〱〱 カーaカ", ["〱〱", "カー", "a", "カ"]),  # WB13
        ("a_0_〱_ a__a 1_a::a", ["a_0_〱_", "a__a", "1_a", "a"]),  # WB13a, WB13b
        ("a\u0308b \u0308a a\u0308:b\u00ad a\u200da", ["a\u0308b", "a", "a\u0308:b\u00ad", "a\u200da"]),  # WB4
        ("a\u202fb １２", ["a\u202fb", "１２"]),
    ],
)
def test_lucene_breaks_words_as_uax_29(text: str, tokens: list[str]) -> None:
    assert get_analyzer("lucene").tokenize(text) == tokens


@pytest.mark.parametrize("name", ["minimal", "stopword", "full", "nltk", "lucene", "opsem", "nltk-numbers"])
@settings(max_examples=10)
@given(TEXTS, TEXTS)
def test_a_space_separates(name: str, left: str, right: str) -> None:
    analyzer = get_analyzer(name)
    assert analyzer(f"{left} {right}") == analyzer(left) + analyzer(right)
    compounds = get_analyzer("nltk+compounds")
    assert sorted(compounds(f"{left} {right}")) == sorted(compounds(left) + compounds(right))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6)
@given(st.lists(TEXTS, max_size=6))
def test_encode_is_a_call_text_by_text(name: str, texts: list[str]) -> None:
    analyzer = get_analyzer(name)
    terms: list[str] = []

    class Ids(dict[str, int]):
        def __missing__(self, token: str) -> int:
            term = analyzer.normalize(token)
            if term is not None and term not in terms:
                terms.append(term)
            self[token] = DROPPED if term is None else terms.index(term)
            return self[token]

    with borders.shrunken({"analyzers._BLOCK": 3}):
        ids, offsets = analyzer.encode(iter(texts), Ids())
    assert (ids.dtype, offsets.dtype, offsets.shape) == (np.int32, np.int64, (len(texts) + 1,))
    assert (offsets[0], offsets[-1]) == (0, len(ids))
    found = [[terms[i] for i in ids[offsets[n] : offsets[n + 1]]] for n in range(len(texts))]
    assert found == [analyzer(text) for text in texts]


def test_the_cache_is_bounded_and_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, CACHE_LIMIT=8)
    reference = get_analyzer("full")
    analyzer = Analyzer("full", reference.tokenize, reference.normalize)
    texts = [f"the runs {i} ponies {i % 7} flies {i * i}" for i in range(100)]
    sizes = set()
    for text in texts:
        assert analyzer(text) == [term for token in reference.tokenize(text) if (term := reference.normalize(token))]
        sizes.add(len(analyzer._terms))
    assert max(sizes) == 8
    assert len(sizes) > 1
    assert analyzer("x" * 10_000) == ["x" * MAX_LENGTH]
    assert all(len(token) <= MAX_LENGTH for token in analyzer._terms)


# Examples of Porter's paper (1980); then where the paper, NLTK's extensions and Porter's own code part.
@pytest.mark.parametrize(
    ("words", "full", "nltk", "lucene"),
    [
        ("caresses ponies ties", "caress poni ti", "caress poni tie", "caress poni ti"),
        ("feed agreed plastered bled", "feed agree plaster bled", "feed agre plaster bled", "feed agre plaster bled"),
        ("conflated troubled sized", "conflate trouble size", "conflat troubl size", "conflat troubl size"),
        ("hopping tanned falling", "hop tan fall", "hop tan fall", "hop tan fall"),
        ("hissing fizzed failing filing", "hiss fizz fail file", "hiss fizz fail file", "hiss fizz fail file"),
        ("happy sky fly enjoy", "happi sky fly enjoi", "happi sky fli enjoy", "happi sky fly enjoi"),
        ("relational conditional", "relational conditional", "relat condit", "relat condit"),
        ("dying news spied", "dy new spi", "die news spi", "dy new spi"),
        ("apology possibly bi 1s", "apologi possibli bi 1s", "apolog possibl bi 1s", "apolog possibl bi 1s"),
        ("syzygies yyying bees", "syzygi yy bee", "syzygi yy bee", "syzygi yy bee"),
    ],
)
def test_stems(words: str, full: str, nltk: str, lucene: str) -> None:
    for name, stems in (("full", full), ("nltk", nltk), ("lucene", lucene)):
        assert get_analyzer(name)(words) == stems.split(), name


def test_stop_lists_are_the_published_ones(data: Path) -> None:
    folder = needs(data, "stopwords")
    from fanrank.engine.text import stopwords

    assert set((folder / "nltk_english.txt").read_text().split()) == stopwords.NLTK_ENGLISH
    assert set((folder / "lucene_english.txt").read_text().split()) == stopwords.LUCENE_ENGLISH
    assert (len(stopwords.NLTK_ENGLISH), len(stopwords.LUCENE_ENGLISH), len(stopwords.OPSEM)) == (179, 33, 50)


def test_minimal_is_r40_on_locomo_but_for_one_accent(data: Path) -> None:
    path = needs(data, "locomo/locomo10.json")
    texts = []
    for sample in json.loads(path.read_text()):
        turns = [turn for value in sample["conversation"].values() if isinstance(value, list) for turn in value]
        texts += [turn["text"] for turn in turns] + [question["question"] for question in sample["qa"]]
    assert len(texts) == 7868
    text = " ".join(texts)
    pairs = zip(get_analyzer("minimal")(text), re.findall("[a-z0-9]+", text.lower()), strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]] == [("café", "caf")] * 3


UNITS = (*"a_é東ก", "a.", "a'", "1,", "-a", "a-", "_\u0301", "a(b)", "א'", "y ", "\u0315\u0300", "\uff9e\u0315", "กุ้")


# One for each way to cut a text.
@pytest.mark.parametrize("name", ["full-numbers", "nltk+compounds", "lucene", "opsem", "agent"])
def test_time_is_linear_in_the_text(name: str) -> None:
    analyzer = get_analyzer(name)
    for unit in UNITS:
        for term in analyzer(unit * (40_000 // len(unit))):  # minutes, were any pattern quadratic
            assert 1 <= len(term) <= MAX_LENGTH


def test_lucene_cuts_long_tokens() -> None:
    assert get_analyzer("lucene")("b" * 600) == ["b" * 255, "b" * 255, "b" * 90]
    assert get_analyzer("lucene").tokenize("c" * 254 + ".d") == ["c" * 254, "d"]


CUTTING = [
    *"aAbeiouySsdgltz019 ..,;:'\"--_()’`\n\t/",
    *("ing", "ed", "ies", "ational", "sses", "running", "don't", "the", "logi", "alli", "fulli", "ied", "eed", "'s"),
    *("’s", "(k)", "(ab)", "401", "E-47821", "BRK.B", "e\u0301", "x" * 300),
    *"İΣςéßﬁ½²Ⅷ٣４１\u0345\u00ad\ud800\u202f\u200d\ufe0f😀☎❤👩🏽🇩🇪日々ひカーｶא״กำာ_＿\u2010",
]


@settings(deadline=None, max_examples=80)
@given(st.lists(st.sampled_from(CUTTING), max_size=40).map("".join))
def test_both_statements_of_every_analyzer_agree(text: str) -> None:
    for name, plain in PLAIN.items():
        assert plain(text) == get_analyzer(name)(text), name


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs with the compiled loops and without them."""
    if request.param == "plain":
        monkeypatch.setenv("FANRANK_BACKEND", "numpy")
    elif native.compiled is None:
        pytest.skip(native.reason)
    else:
        monkeypatch.delenv("FANRANK_BACKEND", raising=False)
    chosen: str = request.param
    return chosen


def encoder(analyzer: str = "minimal", strings: tuple[str, ...] = ()) -> TermIndexer:
    return TermIndexer(get_analyzer(analyzer), Vocabulary(strings))


def test_new_terms_are_numbered_alphabetically_within_a_call() -> None:
    one = encoder()
    terms, documents = one.encode_documents(["dog cat dog", "", "ant cat"])
    assert one.vocabulary.strings == ["ant", "cat", "dog"]  # alphabetical (SPEC A013)
    assert terms.tolist() == [2, 1, 2, 0, 1]
    assert documents.tolist() == [0, 0, 0, 2, 2]
    assert terms.dtype == documents.dtype == np.int32
    # Numbers once given stay, though "bee" sorts before "cat"; known spellings keep theirs.
    terms, _ = one.encode_documents(["bee Dog aardvark"])
    assert one.vocabulary.strings == ["ant", "cat", "dog", "aardvark", "bee"]
    assert terms.tolist() == [4, 2, 3]


def test_queries_leave_the_vocabulary_alone() -> None:
    one = encoder("nltk")
    one.encode_documents(["running cats"])
    known = dict(one.vocabulary.ids)
    assert one.encode_query("the cat runs past cats and dogs") == [known["cat"], known["run"], known["cat"]]
    assert one.encode_terms(["cat", "cats", "nothing", "cat"]) == [known["cat"]] * 2
    assert one.vocabulary.ids == known
    # A spelling first met in a query is no less known once a document brings its term.
    one.encode_documents(["dogs"])
    assert one.encode_query("dogs dog") == [one.vocabulary.ids["dog"]] * 2


def test_a_failed_call_leaves_nothing_behind() -> None:
    def normalize(token: str) -> str:
        if token == "boom":
            raise RuntimeError(token)
        return token

    one = TermIndexer(Analyzer("fragile", str.split, normalize), Vocabulary())
    one.encode_documents(["ant"])
    with pytest.raises(RuntimeError):
        one.encode_documents(["bee", "cat boom"])
    assert one.vocabulary.strings == ["ant"]
    assert one.encode_query("bee ant") == [0]


def test_an_empty_term_is_none() -> None:
    one = TermIndexer(Analyzer("own", str.split, lambda token: token.strip("-")), Vocabulary())
    terms, documents = one.encode_documents(["- ant --", "-", "bee-"])
    assert one.vocabulary.strings == ["ant", "bee"]
    assert (terms.tolist(), documents.tolist()) == ([0, 1], [0, 2])
    assert one.encode_query("bee - ant") == [1, 0]


def test_the_cache_of_spellings_is_bounded(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    borders.shrink(monkeypatch, MAX_CACHED_TOKENS=3)
    one, analyzer = encoder(), get_analyzer("minimal")
    for text in ("ant bee cat dog", "ant eel", "dog fox bee", "ant"):
        terms, _ = one.encode_documents([text])
        assert [one.vocabulary.strings[term] for term in terms.tolist()] == analyzer(text)
    assert one.token_path.name == path
    assert (len(one._token_ids) if one.native is None else one.native.spellings()) <= 3
