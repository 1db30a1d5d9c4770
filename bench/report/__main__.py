"""Tables and pictures from the recorded rows: ``python -m bench.report`` writes them, ``--check`` compares.

`bench/REPORT.md`, `bench/plots/*.svg` and the marked blocks of README.md and of `docs` come only from the rows in
`bench/results/` and the published figures in `bench/report/sources.py`. The same rows give the same bytes.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..harness.paths import BENCH, RESULTS, ROOT
from .plots import svgs, version
from .readme import PAGES, fill_blocks
from .rows import Recorded, again, load
from .sections import SECTIONS, faults, stale

INTRODUCTION = """# Measured

Written by `make report` from the rows in [results/](results/) and from nothing else; what is measured, and how, is in
[README.md](README.md). Every table is of the newest complete run of its bench and names its run and commit; a commit
with `+dirty` had changes that were not committed. Where the code that a bench measures has changed since, the words
"before later changes of the code it measures" say so. Times of different runs, machines or tables are not to be
compared.
Ids like A037 are those of [docs/sources.md](../docs/sources.md); AgentIR is the paper whose figures they are."""


def markdown(recorded: Recorded) -> str:
    """The text of REPORT.md."""
    contents = "\n".join(f"- [{title}](#{title.lower().replace(' ', '-')})" for title in SECTIONS)
    parts = [INTRODUCTION, contents]
    for title, section in SECTIONS.items():
        parts += [f"## {title}", *section(recorded)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def render_files(recorded: Recorded, root: Path) -> dict[Path, bytes]:
    """Every file of the report, by path below `root`; the pictures only where matplotlib is installed."""
    bench = root / "bench"
    pages = [root / name for name in PAGES if (root / name).is_file()]
    files = {
        bench / "REPORT.md": markdown(recorded).encode(),
        **{page: fill_blocks(page.read_text(encoding="utf-8"), recorded).encode() for page in pages},
    }
    if version() is not None:
        files |= {bench / "plots" / name: svg for name, svg in svgs(recorded).items()}
    return files


def differences(files: dict[Path, bytes], plots: Path) -> list[str]:
    """The files that differ from what the rows give, in words. Pictures are compared under their own matplotlib."""
    found = []
    for path, wanted in files.items():
        there = path.read_bytes() if path.is_file() else None
        if there is None:
            found.append(f"{path}: not there")
        elif there != wanted and (path.suffix != ".svg" or is_drawn_here(there)):
            found.append(f"{path}: not what the rows give")
    if version() is not None:
        found += [f"{path}: no row gives it" for path in sorted(plots.glob("*.svg")) if path not in files]
    return found


def is_drawn_here(svg: bytes) -> bool:
    """Whether a picture was drawn by the installed matplotlib."""
    own = version()
    return own is not None and f"{own},".encode() in svg


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or with ``--check`` compare them. Returns 1 where they differ or cannot be drawn, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description="REPORT.md, pictures, tables of pages.")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; 1 if a file is not as the rows give it, or a row lacks or is too old",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="also 1 if a quoted row is not there or older than the code"
    )
    options = parser.parse_args(arguments)
    recorded = load(RESULTS)
    old = [f"{kind}.jsonl is not there or older than the code: {again(kind)}" for kind in stale(recorded)]
    files = render_files(recorded, ROOT)
    plots = BENCH / "plots"
    if options.check:
        found = differences(files, plots) + faults(recorded) + (old if options.fresh else [])
        print("\n".join(found or ["as the rows give it"]))
        if found:
            print("`make report` writes them anew.", file=sys.stderr)
        return int(bool(found))
    if version() is None:
        print("matplotlib is not installed, so there are no pictures: pip install 'fanrank[bench]'", file=sys.stderr)
        return 1
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)
            print(path.relative_to(ROOT))
    for path in sorted(plots.glob("*.svg")):
        if path not in files:
            path.unlink()
    print("\n".join(old), file=sys.stderr)
    return int(options.fresh and bool(old))


if __name__ == "__main__":
    raise SystemExit(main())
