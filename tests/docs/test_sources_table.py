"""The table of docs/sources.md of what is built and what is not: complete, and each name in it leads somewhere."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import fanrank as fr
from fanrank.engine import signatures
from fanrank.engine.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
HEAD = "## What is built of these, and what is not"
COMMANDS: dict[str, Any] = main.commands  # type: ignore[attr-defined]
THEMES = (fr.evaluation, fr.routing, fr.scopes, fr.strategies, fr.text)

WANTED = re.findall(
    r"\w+",
    """
    A003 A005 A006 A007 A013 A017 A019 A025 A026 A032 A033 A034 A037 A038 A039 A040 A043 A053 A054 A055 A066 A067
    A068 A069 A070 A075 A077 A079 A080 A082 A086 A088 A089 A093 A095 A096 A098 A099 A100 A101 A102 A107 A108 A110
    A111 A112 A113 A114 A115 A116 A117 A118 A119 A123 A124 A125 A126 A131 A132 A133 A135 B001 B002 B003 B010 B025
    B030 B033 B034 B035 B040 B041 B042 B043 B060 B062 C001 C003 C004 C012 C013 C014 C022 C030 C040 C041 D011 D012
    D013 D014 D016 D017 D018 E012 E013 E020 E021 E022 E023 E025 E026 E027 E028 E030 E031 E032 E035 E036 E038 T001
    T002 T003 T004 T005 T006 T007 T008 T009 T011 T012 T013 T014 T015 T016 T017 T018 T019 T020 T021 T022 T023 T024
    T025 T026 X17 X36
    """,
)
"""Every item that was found half done or missing, by its id."""
UNNUMBERED = ("§4.3", "J.11", "J.12", "§1", "§6", "since I joined", "k1 + 1")
"""What the documents ask for and no id names."""


def rows(text: str) -> list[list[str]]:
    """The cells of the table's rows."""
    lines = text.split(HEAD)[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0] != "id"]


def table() -> list[list[str]]:
    return rows((ROOT / "docs" / "sources.md").read_text(encoding="utf-8"))


def named(dotted: str) -> Any:
    """The object of a dotted name below `fr`, or of a public name of any theme. Raises `AttributeError`."""
    first, *rest = dotted.removeprefix("fr.").split(".")
    holders = (fr,) if dotted.startswith("fr.") else (fr, *THEMES)
    value = next((getattr(holder, first) for holder in holders if first in dir(holder)), None)
    if value is None:
        raise AttributeError(dotted)
    for name in rest:
        value = getattr(value, name)
    return value


def keywords(value: Any) -> set[str]:
    """The parameters of a callable, those of `**options` included."""
    found = set(inspect.signature(value).parameters)
    for kind in (signatures.SearchKeywords, signatures.EngineOptions):
        if "keywords" in found or "options" in found:
            found |= set(get_type_hints(kind))
    return found


def leads(token: str, row: list[str]) -> bool:
    """Whether what stands in backticks is there: a file, a public name, a command, a strategy, or a parameter."""
    if token.startswith("fanrank "):
        _, command, *options = token.split()
        known = [*main.commands[command].params] if command in main.commands else []
        return bool(known) and all(any(option in parameter.opts for parameter in known) for option in options)
    if "/" in token:
        return (ROOT / token).is_file()
    if token.startswith(("engine.", "bench.")):
        return (ROOT / (token.replace(".", "/") + ".py")).is_file()
    if token in fr.strategies.STRATEGIES:
        return True
    try:
        named(token)
        return True
    except AttributeError:
        pass
    others = [other for other in re.findall(r"`([^`]+)`", row[-1]) if other != token and re.match(r"fr\.|[A-Z]", other)]
    return any(token in keywords(named(other)) for other in others)


def test_every_item_is_there_once() -> None:
    ids = [name for row in table() for name in re.findall(r"\b[A-EPTX]\d{2,3}\b", row[0])]
    assert sorted(ids) == sorted(set(ids))
    assert sorted(set(WANTED) - set(ids)) == []
    told = " ".join(" ".join(row) for row in table())
    assert [name for name in UNNUMBERED if name not in told] == []


def test_every_row_says_where_or_why_not() -> None:
    for row in table():
        assert len(row) == 3, row
        place = row[2]
        built = re.findall(r"`[^`]+`", place)
        why = ("Declined", "Not ", "Nothing to build", "In part", "As A", "Kept", "Measured with")
        assert built or place.startswith(why), row
        if place.startswith(("Declined", "Not measured")):
            assert len(place) > 30, row


@pytest.mark.parametrize("token", sorted({token for row in table() for token in re.findall(r"`([^`]+)`", row[2])}))
def test_each_name_leads_somewhere(token: str) -> None:
    if token == "agent_rrf":
        return
    (row, *_) = [row for row in table() if f"`{token}`" in row[2]]
    assert leads(token, row)


def test_names_that_lead_nowhere_are_found() -> None:
    row = ["A003", "x", "`Engine` `fr.Cascade` `fanrank tune`"]
    wrong = (
        "engine/nowhere.py",
        "engine.nowhere",
        "fr.evaluation.nothing",
        "Engine.nothing",
        "fanrank tune --nothing",
        "fanrank no",
    )
    for token in (*wrong, "nothing", "Nobody"):
        assert not leads(token, row), token
    right = (
        "engine/engine.py",
        "fr.evaluation.tune",
        "Engine.search",
        "fanrank tune --check",
        "tau",
        "log_texts",
        "rrf",
    )
    for token in right:
        assert leads(token, row), token
