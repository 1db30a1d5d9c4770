"""The analyzer `agent`: names whole and in their parts, escapes, folding, pairs of ideographs; analyzers by name."""

import pickle
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.text import agent, analyzers, folding
from fanrank.engine.text.analyzers import get_analyzer

NAMES = st.text("aBs1_-+./\\@:\x1b[mKv é東\xad", max_size=24)
TEXTS = NAMES | st.text(st.characters(codec=None, exclude_categories=()), max_size=40)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        # Names of programs, in each way to join words.
        ("load_user_order", "load_user_order load user order"),
        ("__init__ _private ___", "__init__ init _private private"),
        ("getHTTPHeader HTTPServer", "gethttpheader get http header httpserver http server"),
        ("IDs getIDsFor URLs", "ids getidsfor get ids for urls"),
        ("iPhone 3PM 4K E2E UTF8Decoder", "iphone i phone 3pm 4k e2e utf8decoder utf8 decoder"),
        ("well-known e-mail", "wellknown well known email e mail"),
        ("os.path.join tokio::sync", "os.path.join os path join tokio::sync tokio sync"),
        # Paths and files: whole, each component, the base name, its stem and ending.
        ("src/api/user_test.py", "src/api/user_test.py src api user_test.py user_test user test py"),
        ("./a/b.c ../d /e/f", "a/b.c a b.c b c d e/f e f"),
        ("C:\\Users\\me C:\\\\Users\\\\me", "c users/me users me c users/me users me"),
        ("src/.env node_modules/@types/x", "src/.env src env node_modules/@types/x node_modules node modules types x"),
        # Versions.
        ("v1.2.3", "1.2.3 v1 v 1 2 3"),
        ("1.2.3-rc.1", "1.2.3rc.1 1.2.3 1 2 3 rc.1 rc 1"),
        ("numpy-1.26.4", "numpy1.26.4 numpy 1.26.4 1 26 4"),
        # Codes, tickets, keys and addresses.
        ("E-47821 E47821", "e47821 e 47821 e47821 e 47821"),
        ("ERR_NO_KEY: [E0308]", "err_no_key err no key e0308 e 0308"),
        ("0x840784d1 9e44bd2a", "0x840784d1 0x840784d1 9e44bd2a 9e44bd2a"),
        (
            "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
            "3f2504e04f8911d39a0c0305e82c3301 3f2504e0 3f2504e0 4f89 11d3 9a0c 0305e82c3301 0305e82c3301",
        ),
        (
            "Ana.Lopez+x@mail.example.com.",
            "ana.lopez+x@mail.example.com ana.lopez+x ana lopez+x lopez x mail.example.com mail example com",
        ),
        # What joins nothing.
        ("end. Next, a - b a--b a... (c): d_ word.", "end next a b a b a c d_ d word"),
        ("a:b 10:30 x=1 don't", "a b 10 30 x 1 don t"),
        # Escapes of a terminal.
        ("\x1b[1;31mred\x1b[0m get_\x1b[01;31m\x1b[Kuser\x1b[m\x1b[K_id", "red get_user_id get user id"),
        ("a\x1b[5Cb \x1b]0;title\x07c \x1b(Bd \x1b[", "a b c d"),
        ("a\x00b\x08c\x7fd", "a b c d"),
        # Folding.
        ("café CAFÉ cafe\u0301 naïve Straße ß", "café café café naïve strasse ss"),
        ("ＧｅｔＵｓｅｒ ﬁne ① ½ x² foo™bar®", "getuser get user fine 1 1 2 x2 x 2 foo bar"),
        ("Ørsted Łódź İstanbul ΟΔΟΣ ᾳ", "ørsted łódź i\u0307stanbul οδοσ α"),
        ("Süd2 Домё5 é5e", "süd2 süd 2 домё5 домё 5 é5e"),
        ("E‑47821 co\xadop a—b ‘c’", "e47821 e 47821 coop a b c"),
        # Scripts that write no spaces, or particles; a sign that is alone; signs beside other letters.
        ("日本語テスト 東 한국어", "日本 本語 語テ テス スト 東 한국 국어"),
        ("か\u3099くせい ﾃﾞｰﾀ.csv", "がく くせ せい データ.csv デー ータ csv"),
        ("東京Tower E47821番", "東京 tower e47821 e 47821 番"),
        ("हिन्दी ไทยน้ำ๑๒ \u0e49ที่ ລາວ ខ្មែរ မြန်", "हिन्दी ไท ทย ยน้ํ น้ํา ๑๒ ที่ ລາ າວ ខ្មែ មែរ မြန်"),
        # Pictures.
        ("ok 👍🏽 👍 ❤️ ❤ 👩‍💻 🇩🇪🇫🇷 ⚠️!", "ok 👍 👍 ❤ ❤ 👩‍💻 🇩🇪 🇫🇷 ⚠"),
        ("❤\ufe0f\u200d🔥 ❤\u200d🔥 ❤\u200d\u200d🔥 👩\u200dx", "❤\u200d🔥 ❤\u200d🔥 ❤ 🔥 👩 x"),
    ],
)
def test_tokens(text: str, tokens: str) -> None:
    assert agent.agent_tokens(text) == tokens.split(" ")


def test_no_word_becomes_a_stop_word_by_folding() -> None:
    terms = get_analyzer("agent")("The THÉ, às Ｔｈｅ do ðo thés «a» ⁢í⁢ is ıs Œuvre/à.py Łódź")
    assert terms == ["the", "as", "do", "the", "i", "is", "oeuvre/a.py", "oeuvr", "a.py", "a", "py", "lodz"]


def test_words_are_stemmed_and_stopped_and_wholes_are_not() -> None:
    terms = get_analyzer("agent")("The deploys failed in get_users and to_do.notes, generally")
    assert terms == ["deploy", "fail", "get_users", "get", "user", "to_do.notes", "to_do", "note", "gener"]
    assert get_analyzer("agent-numbers")("3.14 4711 v2 E-47821") == ["v2", "v", "e47821", "e"]
    plain = "Ana prefers tea, and meetings after ten; the 3 deploys weren't finished!"
    assert get_analyzer("agent")(plain) == get_analyzer("nltk")(plain)


@given(TEXTS, TEXTS)
@example("a:\xad", ":b")
@example("aB-1.2 x/.y", "é")
def test_what_stands_apart_is_cut_apart(left: str, right: str) -> None:
    for separator in (" ", "\n", ", ", "\u2014"):
        assert agent.agent_tokens(left + separator + right) == agent.agent_tokens(left) + agent.agent_tokens(right) or (
            "\x1b" in left  # the right side may end an escape
        )


# An escape ends with a character, and that may be the letter of a letter with a mark.
@given(st.text(max_size=30).filter(lambda text: "\x1b" not in text))
def test_forms_of_one_text_give_one_list(text: str) -> None:
    tokens = agent.agent_tokens(text)
    assert agent.agent_tokens(unicodedata.normalize("NFD", text)) == agent.agent_tokens(
        unicodedata.normalize("NFC", text)
    )
    assert all(token == folding.lower(token) for token in tokens)
    assert all(len(token) >= 1 for token in tokens)


def test_every_character_has_one_fold() -> None:
    # All of the scripts that change most, and every 17th beyond.
    for code in (*range(0x3100), *range(0x3100, sys.maxunicode + 1, 17)):
        character = chr(code)
        if 0xD800 <= code < 0xE000:
            continue
        folded = folding.fold(character)
        plain = folding.without_accents(folding.lower(folded))
        assert (folding.fold(folded), folding.fold(plain)) == (folded, plain), hex(code)
        assert not re.search("[\u0300-\u036f\ufe00-\ufe0f]", plain), hex(code)


def test_of_many_marks_the_first_count() -> None:
    for marks in ("\u0315\u0300", "\uff9e\u0e38", "\u3099\xad\u0e38", "\u3099" * 20 + "\u0e38" * 20 + "\u2060"):
        folded = folding.fold("か" + marks * (40_000 // len(marks)))  # seconds, were they all put in order
        assert len(folded) <= 1 + folding.MOST_MARKS
        assert folding.fold(folded) == folded
    assert folding.fold("か" + "\u3099" * 30) == folding.fold("か" + "\u3099" * 31)
    assert folding.fold("か" + "\u3099" * 29) != folding.fold("か" + "\u3099" * 30)


def test_long_chunks_are_words_alone() -> None:
    assert agent.agent_tokens("ab_cd." * 60) == ["ab", "cd"] * 60
    assert agent.agent_tokens("aB" * 33) == ["ab" * 33]
    assert len(agent.agent_tokens("aB" * 32)) == 1 + 33


@pytest.fixture
def registered() -> Iterator[dict[str, Any]]:
    """Analyzers by name, as in another process: none."""
    with mock.patch.dict(analyzers._REGISTERED, clear=True):
        yield analyzers._REGISTERED


def german(word: str) -> str:
    return re.sub("(en|e)$", "", word)


def test_a_language_has_its_stop_words_and_stemmer(tmp_path: Path, registered: dict[str, Any]) -> None:
    made = fr.text.make_analyzer("german", stop_words=["die", "für"], stem=german)
    assert made("Die Katzen für src/katzen.py") == ["katz", "src/katzen.py", "src", "katzen.py", "katz", "py"]
    with pytest.raises(fr.errors.ParameterError, match=r"nothing is known by the name 'german'.*register_analyzer"):
        fr.Engine.open(tmp_path / "refused", analyzer=made)
    assert fr.text.register_analyzer(made) is fr.text.register_analyzer(made) is get_analyzer("german") is made
    with fr.Engine.open(tmp_path / "memory", analyzer="german") as memory:
        memory.add([fr.Record("m", "Die Katzen")])
    with fr.Engine.open(tmp_path / "memory") as memory:
        assert memory.analyzer is made
        assert [record for record, _ in memory.search(["Katze"])[0]] == ["m"]
    # Another process, which registered nothing, is told what to do.
    registered.clear()
    with pytest.raises(fr.errors.ParameterError, match=r"no analyzer 'german'.*register_analyzer before"):
        fr.Engine.open(tmp_path / "memory")


def test_snowball_stems_what_is_written_and_folds_the_stem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with mock.patch.dict(sys.modules, {"Stemmer": None}), pytest.raises(fr.errors.MissingExtraError) as caught:
        get_analyzer("snowball:yiddish")
    assert str(caught.value) == "PyStemmer is not installed; run: pip install 'fanrank[snowball]'"
    stemmer = pytest.importorskip("Stemmer")
    spanish = get_analyzer("snowball:spanish")
    assert spanish("Canción canciones cancion comíamos y a/él.py")[:6] == ["cancion"] * 3 + ["com", "y", "a/el.py"]
    assert get_analyzer("snowball:english")("The thé ponies 日本語") == ["the", "poni", "日本", "本語"]
    assert pickle.loads(pickle.dumps(spanish)) is spanish
    with fr.Engine.open(tmp_path / "memory", analyzer="snowball:german-numbers") as memory:
        memory.add([fr.Record("m", "Das Fahrrad für 300")])
    with fr.Engine.open(tmp_path / "memory") as memory:
        assert (memory.analyzer.stored, memory.opened) == (f"snowball:german-numbers 2 {stemmer.version()}", "loaded")
        assert memory.search(["Fahrräder", "300"]).counts.tolist() == [1, 0]
    monkeypatch.setattr(stemmer, "algorithms", list)
    with pytest.raises(fr.errors.ParameterError, match="has no stemmer for 'tamil': pip install -U PyStemmer"):
        get_analyzer("snowball:tamil")


@pytest.mark.usefixtures("registered")
def test_names_that_are_taken_or_unfit_are_refused() -> None:
    fr.text.register_analyzer(fr.text.Analyzer("mine", str.split, str))
    for name in ("mine", "nltk", "agent-numbers", "minimal+compounds", "", "a b", "é"):
        with pytest.raises(fr.errors.ParameterError, match=r"another name|name is a letter"):
            fr.text.register_analyzer(fr.text.Analyzer(name, str.split, str))
    with pytest.raises(fr.errors.ParameterError, match="no analyzer 'mine' to build on"):
        fr.text.make_analyzer("other", base="mine")


@pytest.mark.parametrize(
    ("slip", "message"),
    [
        ({"base": "nltk+compounds"}, "no analyzer 'nltk.compounds' to build on"),
        ({"stop_words": "der die"}, "stop_words must be a list of words, not 'der die'"),
        ({"stop_words": [1]}, "stop_words must be a list of words"),
        ({"stop_words": None}, "stop_words must be a list of words"),
        ({"stem": "german"}, "stem must be a function"),
        ({"name": None}, "an analyzer is a name and two functions"),
    ],
)
def test_slips_in_an_analyzer_are_named(slip: dict[str, Any], message: str) -> None:
    with pytest.raises(fr.errors.ParameterError, match=message):
        fr.text.make_analyzer(**{"name": "mine", **slip})


@pytest.mark.parametrize(
    ("analyzer", "message"),
    [
        (lambda: fr.text.make_analyzer("mine", stem=lambda word: None), "'mine': the stem of 'tea' must be a string"),
        (lambda: fr.text.Analyzer("mine", str.split, len), "the term of 'tea' must be a string or None, not 3"),
        (lambda: fr.text.Analyzer("mine", lambda text: [7], str), "tokenize must give strings, not 7"),
    ],
)
def test_terms_that_are_no_strings_are_named(analyzer: Callable[[], Any], message: str) -> None:
    with pytest.raises(fr.errors.ParameterError, match=message):
        analyzer()("tea")
    engine = fr.Engine(analyzer=analyzer())
    with pytest.raises(fr.errors.ParameterError, match=message):
        engine.add([fr.Record("m1", "tea")])
    assert len(engine) == 0
    with pytest.raises(fr.errors.ParameterError, match="register_analyzer takes an Analyzer"):
        fr.text.register_analyzer("mine")  # type: ignore[arg-type]


def test_a_directory_keeps_the_analyzer_that_it_was_made_with(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path, analyzer="nltk") as memory:
        memory.add([fr.Record("m", "a café")])
    with fr.Engine.open(tmp_path) as memory:
        assert (memory.analyzer.name, fr.Engine().analyzer.name) == ("nltk", "agent")
        assert memory.search(["cafe", "café"], k=1).counts.tolist() == [0, 1]
