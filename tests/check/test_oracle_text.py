"""The oracle's own analyzers: against words by hand, against every analyzer, and that `check` sees a broken one."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.check import oracle_text
from fanrank.engine.check.check import check, terms_by
from fanrank.engine.check.oracle_text import PLAIN, stem
from fanrank.engine.cli.main import main
from fanrank.engine.settings import ENVIRONMENT_VARIABLE
from fanrank.engine.text import analyzers, dispatch, porter
from fanrank.engine.text.stopwords import LUCENE_ENGLISH, NLTK_ENGLISH, OPSEM
from fanrank.text import ANALYZERS, Analyzer, get_analyzer

PIECES = [
    *"aAbeiouySsdgltz019 ..,;:'\"--_()’`\n\t/",
    *("ing", "ed", "ies", "ational", "sses", "running", "don't", "the", "logi", "alli", "fulli", "ied", "eed", "'s"),
    *("İ", "Σ", "ς", "é", "e\u0301", "ß", "ﬁ", "½", "²", "Ⅷ", "٣", "４", "１", "\u0345", "\u00ad", "\ud800", "\u202f"),
    *(
        "\u200d",
        "\ufe0f",
        "😀",
        "☎",
        "❤",
        "👩",
        "🏽",
        "🇩",
        "🇪",
        "日",
        "々",
        "ひ",
        "カ",
        "ー",
        "ｶ",
        "א",
        "״",
        "ก",
        "ำ",
        "ာ",
    ),
    *("x" * 300, "_", "＿", "’s", "(k)", "(ab)", "401", "E-47821", "BRK.B", "\u2010"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


def test_it_imports_nothing_of_the_engine() -> None:
    tree = ast.parse(Path(oracle_text.__file__).read_text(encoding="utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or "."] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported == {"__future__", "unicodedata", "collections.abc", "functools", "itertools", "regex"}


@pytest.mark.parametrize(
    ("name", "text", "terms"),
    [
        ("minimal", "The E-47821, caf\u0065\u0301!", ["the", "e", "47821", "café"]),
        ("stopword", "The tea is not hot", ["tea", "hot"]),
        ("full", "happily running ponies agreed", ["happili", "run", "poni", "agree"]),
        ("nltk", "She said the relational ponies were dying", ["said", "relat", "poni", "die"]),
        ("nltk+compounds", "401(k) for BRK.B at 3.5", ["401", "k", "brk", "b", "3", "5", "401k", "brkb"]),
        ("nltk-numbers", "47 rooms, room2", ["room", "room2"]),
        ("lucene", "Ana's can't 3.5 foo.bar 日本 😀", ["ana", "can't", "3.5", "foo.bar", "日", "本", "😀"]),
        ("opsem", "Ana_x said to E-47821 ok", ["ana_x", "said", "e-47821"]),
    ],
)
def test_terms_by_hand(name: str, text: str, terms: list[str]) -> None:
    assert PLAIN[name](text) == terms


def test_stems_of_porters_paper() -> None:
    pairs = (
        "caresses:caress ponies:poni cats:cat feed:feed agreed:agre plastered:plaster motoring:motor sing:sing "
        "conflated:conflat troubled:troubl sized:size hopping:hop falling:fall hissing:hiss failing:fail filing:file "
        "happy:happi sky:sky relational:relat rational:ration digitizer:digit vietnamization:vietnam operator:oper "
        "hopefulness:hope electriciti:electr goodness:good revival:reviv adjustment:adjust adoption:adopt "
        "homologous:homolog effective:effect bowdlerize:bowdler probate:probat rate:rate cease:ceas controll:control "
        "roll:roll"
    )
    for word, expected in (pair.split(":") for pair in pairs.split()):
        assert stem(word, "martin") == expected


def test_every_analyzer_has_one() -> None:
    """An analyzer that is added without an entry is not checked, and `check` says so."""
    known = {name.split("+")[0].split("-")[0] for name in PLAIN}
    missing = set(ANALYZERS) - known
    assert missing <= {"agent"}
    for name in PLAIN:
        assert terms_by(get_analyzer(name)) == (PLAIN[name], "plain")
    made = Analyzer("nltk", str.split, lambda token: token)
    assert terms_by(made) == (made, "the analyzer's own")


@settings(deadline=None, max_examples=150)
@given(TEXTS)
def test_both_statements_of_every_analyzer_agree(text: str) -> None:
    for name, plain in PLAIN.items():
        assert plain(text) == get_analyzer(name)(text), name


def test_both_lists_of_stop_words_agree() -> None:
    both = ((oracle_text.LUCENE, LUCENE_ENGLISH), (oracle_text.NLTK, NLTK_ENGLISH), (oracle_text.OPSEM, OPSEM))
    for mine, theirs in both:
        assert mine == theirs


RECORDS = [
    fr.Record("a", "the runners were running to the tea house, room 401"),
    fr.Record("b", "a run for tea: houses and the rooms"),
    fr.Record("c", "nothing of the kind"),
]
QUERIES = [fr.Query("who runs for tea in the house"), fr.Query("rooms 401")]


def wrong_stem(monkeypatch: pytest.MonkeyPatch) -> str:
    """-ing stays, in plain Python."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "numpy")
    plain = porter.stem_word
    monkeypatch.setattr(porter, "stem_word", lambda word, **how: word if word.endswith("ing") else plain(word, **how))
    return "nltk"


def wrong_stop_words(monkeypatch: pytest.MonkeyPatch) -> str:
    """The compiled loops are given one stop word less."""
    plain = dispatch._lone_stop_words
    monkeypatch.setattr(dispatch, "_lone_stop_words", lambda *given: [word for word in plain(*given) if word != "the"])
    return "nltk"


def wrong_tokens(monkeypatch: pytest.MonkeyPatch) -> str:
    """Digits separate words."""
    analyzer = get_analyzer("lucene")
    plain = analyzer.tokenize
    monkeypatch.setattr(analyzer, "tokenize", lambda text: [token for token in plain(text) if not token.isdigit()])
    return "lucene"


@pytest.mark.parametrize("plant", [wrong_stem, wrong_stop_words, wrong_tokens])
def test_a_broken_analyzer_shows(plant: Callable[[pytest.MonkeyPatch], str], tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("".join(f'{{"id": "{record.id}", "text": "{record.text}"}}\n' for record in RECORDS))
    with pytest.MonkeyPatch.context() as planted:
        analyzers.get_analyzer("nltk").forget()
        name = plant(planted)
        found = check(RECORDS, QUERIES, corpus="made", k=5, backend="numpy", analyzer=name)
        told = CliRunner().invoke(main, ["check", str(path), "--backend", "numpy", "--analyzer", name, "-k", "5"])
    analyzers.get_analyzer("nltk").forget()
    assert found["analysis"] == "plain"
    assert found["differences"] > 0
    assert told.exit_code == 1
    assert "DIFFERENCES" in told.stdout
    assert check(RECORDS, QUERIES, corpus="made", k=5, backend="numpy", analyzer=name)["differences"] == 0


def test_the_command_says_whose_terms_the_oracle_took(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"id": "a", "text": "tea for two"}\n{"id": "b", "text": "two cups"}\n')
    how = ["check", str(path), "--backend", "numpy", "--analyzer", "opsem", "-k", "5"]
    assert "the analyzer's own" not in CliRunner().invoke(main, how).stdout
    monkeypatch.delitem(PLAIN, "opsem")
    told = CliRunner().invoke(main, how)
    assert told.exit_code == 0
    assert "took its terms from the analyzer's own code" in told.stdout
