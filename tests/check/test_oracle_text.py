"""The oracle's own analyzers: against words by hand, against every analyzer, and that `check` sees a broken one."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.check import oracle_agent, oracle_text
from fanrank.engine.check.check import check, terms_by
from fanrank.engine.check.oracle_text import PLAIN
from fanrank.engine.cli.main import main
from fanrank.engine.settings import ENVIRONMENT_VARIABLE
from fanrank.engine.text import agent, analyzers, dispatch, folding, porter
from fanrank.engine.text.stopwords import LUCENE_ENGLISH, NLTK_ENGLISH, OPSEM
from fanrank.text import ANALYZERS, Analyzer, get_analyzer

PIECES = [
    *"aAbeiouySsdgltz019 ..,;:'\"--_()’`\n\t/",
    *("ing", "ed", "ies", "ational", "sses", "running", "don't", "the", "logi", "alli", "fulli", "ied", "eed", "'s"),
    *("’s", "(k)", "(ab)", "401", "E-47821", "BRK.B", "e\u0301", "x" * 300),
    *"İΣςéßﬁ½²Ⅷ٣４１\u0345\u00ad\ud800\u202f\u200d\ufe0f😀☎❤👩🏽🇩🇪日々ひカーｶא״กำာ_＿\u2010",
]
NAMES = [
    *"aBsvV12_-+./\\@:?mK\x1b\x07 \xad\u200d\ufe0f",
    *("::", "//", "\\\\", "/.", "/@", "v1.2", "1.26.4", "IDs", "HTTPServer", "aB" * 33, "aB" * 32, "ab12", "9e44bd2a"),
    *("\x1b[0m", "\x1b[2J", "\x1b]0;t\x07", "\x1b(B", "e\u0301", "か\u3099", "ｶﾞ", "\u1112\u1161", "हि", "👍🏽"),
    *("the", "running", "ing"),
    *"éßİẞıæÐᾳЁйกำ้๑ខ្ម်ລ½ﬁ①™٣ǅⅧ日ー한\u034f\u302a\u0903\ud800\u2010\u2014\u2044👩❤🇩🇪",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
CODE = st.lists(st.sampled_from(NAMES) | st.characters(codec=None, exclude_categories=()), max_size=30).map("".join)


def test_it_imports_nothing_of_the_engine() -> None:
    plain = {"__future__", "unicodedata", "collections.abc", "functools", "itertools", "regex"}
    for module, own in ((oracle_text, {"oracle_agent"}), (oracle_agent, set[str]())):
        tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
        imported = {
            name
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in (
                [node.module or "."] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            )
        }
        assert imported == plain | own


def test_every_analyzer_has_one() -> None:
    """An analyzer that is added without an entry is not checked, and `check` says so."""
    known = {name.split("+")[0].split("-")[0] for name in PLAIN}
    assert known == set(ANALYZERS)
    for name in PLAIN:
        assert terms_by(get_analyzer(name)) == (PLAIN[name], "plain")
    made = Analyzer("nltk", str.split, lambda token: token)
    assert terms_by(made) == (made, "the analyzer's own")


@settings(deadline=None, max_examples=40)
@given(TEXTS)
def test_both_statements_of_every_analyzer_agree(text: str) -> None:
    for name, plain in PLAIN.items():
        assert plain(text) == get_analyzer(name)(text), name


@settings(deadline=None, max_examples=60)
@given(CODE)
@example("a:\xad:b \x1b[?\ud800m ❤\ufe0f\u200d🔥 👩\u200d\u200dx")
def test_both_statements_of_agent_agree(text: str) -> None:
    # The tokens too, because a stem or a stop word could hide a difference.
    assert oracle_agent.agent_tokens(text) == agent.agent_tokens(text)
    assert PLAIN["agent"](text) == get_analyzer("agent")(text)
    assert PLAIN["agent-numbers"](text) == get_analyzer("agent-numbers")(text)


def test_both_lists_of_stop_words_agree() -> None:
    both = ((oracle_text.LUCENE, LUCENE_ENGLISH), (oracle_text.NLTK, NLTK_ENGLISH), (oracle_text.OPSEM, OPSEM))
    for mine, theirs in both:
        assert mine == theirs


RECORDS = [
    fr.Record("a", "the cafe runners were running to the tea house, room 401 E47821"),
    fr.Record("b", "a café run for src/tea.py: houses and the rooms, tea"),
    fr.Record("c", "nothing of the kind"),
]
QUERIES = [fr.Query("who runs for tea in the house"), fr.Query("rooms 401 47821"), fr.Query("cafe src/tea.py")]


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


def forget() -> None:
    """What was remembered of tokens before a fault, or during it."""
    agent._remembered.cache_clear()
    for name in ("nltk", "agent"):
        analyzers.get_analyzer(name).forget()


def wrong_folding(monkeypatch: pytest.MonkeyPatch) -> str:
    """Accents stay."""
    monkeypatch.setattr(folding, "unicodedata", SimpleNamespace(normalize=lambda form, text: text))
    return "agent"


FAULTS = [wrong_stem, wrong_stop_words, wrong_tokens, wrong_folding]


@pytest.mark.parametrize("plant", FAULTS)
def test_a_broken_analyzer_shows(plant: Callable[[pytest.MonkeyPatch], str], tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("".join(f'{{"id": "{record.id}", "text": "{record.text}"}}\n' for record in RECORDS))
    with pytest.MonkeyPatch.context() as planted:
        forget()
        name = plant(planted)
        found = check(RECORDS, QUERIES, corpus="made", k=5, backend="numpy", analyzer=name)
        told = CliRunner().invoke(main, ["check", str(path), "--backend", "numpy", "--analyzer", name, "-k", "5"])
    forget()
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
