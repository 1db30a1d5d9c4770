"""README.md and docs/figures.md hold no figure but those that rows give. These stand in blocks, which are current."""

from __future__ import annotations

import re

from support.benches import load
from support.source import ROOT

cases, methods, synthetic = load("harness.cases", "harness.methods", "harness.synthetic")
report_readme, report_rows, report_sections = load("report.readme", "report.rows", "report.sections")
PAGES = [(ROOT / name).read_text(encoding="utf-8") for name in report_readme.PAGES]
SETTINGS = {
    "5 to 20": "what a planner asks, from the description of the workload",
    "3.10 to 3.13": "versions of Python",
    "exits 1": "an exit status",
    "C++20 compiler (without": "a version of a language",
    "C++20 compiler (g++ 11, clang 14": "compilers that have it",
    "That takes 85 MB, 74 of them numpy's.": "docs/decisions.md, measured with du in a fresh environment",
    "float64": "a type",
    "BM25": "a name",
    "mem0": "a name",
    f"k1 {cases.K1:g}, b .{100 * cases.B:g}": "cases.py",
    f"{synthetic.PER_WEEK} records": "synthetic.py",
    f"fan-outs of {methods.FAN_OUT}": "methods.py",
    "newest 4 windows": "methods.py",
    f"half-life of {methods.HALF_LIFE / 86_400:g} days": "methods.py",
}
"""Every other number in the prose of the pages: what it is, and where it is declared."""


def prose(text: str) -> str:
    """A page without blocks of rows, code, and where links lead."""
    text = report_readme.BLOCK.sub("", text)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "", text)
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())


def test_the_blocks_are_what_the_rows_give():
    recorded = report_rows.load(ROOT / "bench" / "results")
    stale = "\n".join(report_sections.stale(recorded).values())
    for page in PAGES:
        # A change of the code makes rows older than it. Writing the pages anew marks them; a bench takes them again.
        assert report_readme.fill_blocks(page, recorded) == page, (
            f"`make report` writes them anew, in seconds. Rows older than the code they speak of:\n{stale}"
        )
    text = "".join(PAGES)
    assert {match["name"] for match in report_readme.BLOCK.finditer(text)} == set(report_readme.BLOCKS)
    assert text.count("<!-- rows: ") == text.count("<!-- /rows -->") == len(report_readme.BLOCKS)


def test_no_number_outside_of_blocks_but_settings():
    left = prose("\n".join(PAGES[:2]))
    for known in SETTINGS:
        assert known in left, f"{known} is no longer on a page: take it out of SETTINGS"
        left = left.replace(known, "")
    found = [left[max(0, match.start() - 40) : match.end() + 20] for match in re.finditer(r"\S*\d\S*", left)]
    assert not found, "a figure that no row gives: put it in a block of bench/report/readme.py"


def test_the_readme_has_no_link_or_picture_that_leads_nowhere_elsewhere():
    # A package index shows the README alone: a relative path leads nowhere there. Of the picture it shows the words.
    targets = re.findall(r"\]\(([^)]*)\)", PAGES[0])
    assert targets == ["bench/plots/fanout.svg"]
    assert (ROOT / targets[0]).is_file()
    assert len(PAGES[0].splitlines()) <= 130
