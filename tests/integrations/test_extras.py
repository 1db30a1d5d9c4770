"""The extras of the adapters: every framework has one, and `make oldest` runs on the versions that they name."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOUND = re.compile(r'"([a-z0-9-]+)>=([0-9.]+)[;"]')
TORCH = {"beir", "mteb", "sentence-transformers", "ranx"}
"""Frameworks that bring torch, or of which one version was tried."""


def extras() -> dict[str, str]:
    """By package the lower bound, of the frameworks' extras."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    part = text.split("# An extra for each framework.")[1].split("\ngpu = ")[0]
    return dict(BOUND.findall(part))


def test_the_oldest_versions_are_the_bounds() -> None:
    lines = (ROOT / "tests" / "extended" / "frameworks" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    bounds = extras()
    assert pinned.keys() == bounds.keys() - TORCH
    assert {name: f"{version}.0.0"[: len(pinned[name])] for name, version in bounds.items() if name in pinned} == pinned


def test_every_adapter_is_in_the_table() -> None:
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    files = {path.stem for path in (ROOT / "integrations").glob("*.py")}
    parts = {"__init__", "shared", "candidates", "tool_answers", "tool_arguments"}
    parts |= {name for name in files for other in files if name.startswith(f"{other}_")}
    assert files - parts <= set(re.findall(r"`([a-z0-9_]+)\.[A-Za-z0-9_]+`", page))
