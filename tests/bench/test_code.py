"""Which code a row speaks of: words do not change its hash, code does; what stands beside older figures."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Only while importing: the root holds folders named like other people's packages.
sys.path.append(str(ROOT))
try:
    from bench.harness import code
    from bench.report import __main__ as report
    from bench.report import readme as report_readme
    from bench.report import rows as report_rows
finally:
    sys.path.remove(str(ROOT))

RECORDED = report_rows.load(ROOT / "bench" / "results")

PYTHON = '''"""A file."""
import os

LIMIT = 3
"""Below a field."""


def f(a: int, *, b: str = "x") -> str:  # why
    """Says what."""
    return f"{a!r:>{LIMIT}}" + b
'''
CPP = """// A file.
#include <vector>
int f(int a) { return a + 1'000; }  // why
const char* link = "http://x"; /* two
lines */ char quote = '"'; // "
"""


@pytest.mark.parametrize(
    "other",
    [
        PYTHON.replace("# why", "# for another reason"),
        PYTHON.replace('"""Says what."""', '"""Says more."""').replace('"""A file."""\n', ""),
        PYTHON.replace('"""Below a field."""\n', "").replace("\n\n\n", "\n\n"),
        PYTHON.replace('"x"', "'x'"),
    ],
)
def test_words_and_layout_of_python_do_not_count(other: str) -> None:
    assert other != PYTHON
    assert code.python_code(other) == code.python_code(PYTHON)


@pytest.mark.parametrize(
    ("old", "new"), [("3", "4"), ('"x"', '"y"'), (":>", ":<"), ("+ b", "+ b + b"), ("int", "float")]
)
def test_code_of_python_counts(old: str, new: str) -> None:
    assert code.python_code(PYTHON.replace(old, new, 1)) != code.python_code(PYTHON)


@pytest.mark.parametrize(
    "other",
    [
        CPP.replace("// why", "// for another reason"),
        CPP.replace("two\nlines", "one line"),
        CPP.replace("// A file.\n", "").replace("; }", ";\n}").replace("}  //", "} //"),
        CPP.rpartition("// ")[0],
    ],
)
def test_words_and_layout_of_cpp_do_not_count(other: str) -> None:
    assert re.sub(r"\s", "", code.c_code(other)) == re.sub(r"\s", "", code.c_code(CPP))


@pytest.mark.parametrize(("old", "new"), [("1'000", "1'001"), ("http://x", "http://y"), ("char quote", "int quote")])
def test_code_of_cpp_counts(old: str, new: str) -> None:
    assert code.c_code(CPP.replace(old, new)) != code.c_code(CPP)


def test_a_hash_is_of_the_files_of_a_bench_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "FILES", {"one": ("native/**/*", "setup.py"), "other": ("engine/**/*",)})

    def hashes() -> tuple[str, str]:
        code.hash_of.cache_clear()
        code.read_code.cache_clear()
        return code.code_of("one", tmp_path), code.code_of("other", tmp_path)

    for name, text in (("native/a.cpp", CPP), ("setup.py", PYTHON), ("engine/b/c.py", PYTHON), ("native/x.so", "1")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    one, other = hashes()
    (tmp_path / "native/a.cpp").write_text(f"// New words.\n{CPP}")
    (tmp_path / "native/x.so").write_text("2")
    assert hashes() == (one, other)
    (tmp_path / "native/a.cpp").write_text(f"{CPP}int g;")
    changed, same = hashes()
    assert changed != one
    assert same == other
    (tmp_path / "native/a.cpp").rename(tmp_path / "native/b.cpp")
    assert hashes()[0] not in (one, changed)


def test_every_bench_of_the_report_has_files_and_a_command() -> None:
    assert code.FILES.keys() == code.COMMANDS.keys()
    kinds = {report_rows.RESULT_FILES.get(kind, kind) for kind in (*report_rows.KINDS, "cpu")}
    assert kinds <= code.FILES.keys()
    for bench, patterns in code.FILES.items():
        found = [path for pattern in patterns for path in ROOT.glob(pattern) if path.suffix in code.SUFFIXES]
        assert len(found) > 3, bench
    product = {path for patterns in code.FILES.values() for pattern in patterns for path in ROOT.glob(pattern)}
    assert not [path for path in product if path.relative_to(ROOT).parts[0] in ("bench", "tests")]


# What stands beside figures


def aged(value: str | None) -> report_rows.Recorded:
    """The recorded rows, with this hash in place of theirs; None for the current one."""

    def hash_of(bench: str) -> str:
        return code.code_of(bench) if value is None else value

    def renewed(kind: str, row: Any) -> dict[str, Any]:
        return {**row, "code": hash_of(report_rows.RESULT_FILES.get(kind, kind))}

    return report_rows.Recorded(
        [replace(row, code=hash_of("cpu")) for row in RECORDED.cpu],
        {kind: [renewed(kind, row) for row in rows] for kind, rows in RECORDED.others.items()},
    )


PARTS = {**report_readme.BLOCKS, **dict(report.SECTIONS)}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("value", ["", "0123456789ab", None])
def test_every_figure_says_whether_its_code_has_changed_since(name: str, value: str | None) -> None:
    text = PARTS[name](aged(value))
    text = text if isinstance(text, str) else "\n".join(text)
    if "o row yet" in text and not any(character.isdigit() for character in text):
        pytest.skip("no row to speak of")
    assert (report_rows.STALE in text) == (value is not None)


def test_rows_without_a_hash_are_stale_and_named_with_their_command() -> None:
    assert report_rows.is_stale({"bench": "growth"})
    assert not report_rows.is_stale({"bench": "growth", "code": code.code_of("growth")})
    assert report_rows.describe_stale(aged(None)) == []
    told = report_rows.describe_stale(aged(""))
    assert any(
        line.startswith("growth.jsonl: run ") and line.endswith("`make growth` takes them again") for line in told
    )
    assert len(told) == sum(bool(rows) for rows in RECORDED.others.values()) + bool(RECORDED.cpu)
