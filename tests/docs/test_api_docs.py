"""docs/api.md is what the docstrings say, and it has every public name."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import api_docs

import fanrank as fr

PAGE = Path(__file__).resolve().parents[2] / "docs" / api_docs.PAGE


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == api_docs.render(), "`make docs` writes it anew"


def test_the_page_has_every_public_name() -> None:
    headings = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("### ")]
    names = [f"### {module}.{name}" for module in api_docs.public_modules() for name in api_docs.public_names(module)]
    assert headings == names


def test_every_public_name_has_a_docstring(monkeypatch: pytest.MonkeyPatch) -> None:
    assert api_docs.names_without_text() == []
    monkeypatch.setattr(fr.text.get_analyzer, "__doc__", None)
    assert api_docs.names_without_text() == ["fanrank.text.get_analyzer"]


def test_a_class_is_described_by_its_call_its_fields_and_its_methods() -> None:
    section = api_docs.describe_name("fanrank.Query", fr.Query)
    assert section.startswith("### fanrank.Query\n\n```python\nclass Query(\n    text: str")
    section = api_docs.describe_name("fanrank.Engine", fr.Engine)
    assert "#### Engine.search\n\n```python\nsearch(\n" in section
    assert "#### Engine._" not in section
    assert "class FanrankError\n```" in api_docs.describe_name("fanrank.FanrankError", fr.FanrankError)


def test_planted_changes_show(monkeypatch: pytest.MonkeyPatch) -> None:
    before = api_docs.describe_name("fanrank.Engine", fr.Engine)
    monkeypatch.setattr(fr.Engine.search, "__doc__", "Another text.")
    changed = api_docs.describe_name("fanrank.Engine", fr.Engine)
    assert changed != before
    assert "Another text." in changed
