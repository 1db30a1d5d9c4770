"""The site in build/site: ``python docs/make_site.py``. A link that leads nowhere fails.

The pages, and the files that they link to, are laid out in build/pages as they stand in the checkout, so that links
between them stay as they are. A page for each theme of the public names is added, made from the docstrings.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import fanrank as fr

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
SOURCES = ("*.md", "docs/**/*.md", "bench/*.md", "kernels/README.md")


def lay_out() -> None:
    """Copy the pages and the files that they link to into build/pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for page in (path for pattern in SOURCES for path in ROOT.glob(pattern)):
        text = page.read_text(encoding="utf-8")
        for whole, name, link in re.findall(r"(\[([^]]*)\]\(([^)#:\s]+)\))", text):
            linked = (page.parent / link).resolve()
            if linked.is_dir():  # a site shows no folders
                text = text.replace(whole, name)
            elif linked.is_file() and linked.suffix != ".md":
                shutil.copy(linked, place(linked))
        place(page).write_text(text, encoding="utf-8")


def place(path: Path) -> Path:
    """Where a file of the checkout stands in build/pages; its folder is made."""
    target = PAGES / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def write_reference() -> None:
    """Write the pages of the public names to build/pages/reference."""
    folder = PAGES / "reference"
    folder.mkdir()
    names = "\n\n".join(f"::: fanrank.{fr._HOMES[name]}.{name}" for name in sorted(fr._HOMES))
    (folder / "fanrank.md").write_text(f"# fanrank\n\n{names}\n", encoding="utf-8")
    for theme in fr._THEMES:
        (folder / f"{theme}.md").write_text(f"# fanrank.{theme}\n\n::: fanrank.{theme}\n", encoding="utf-8")


if __name__ == "__main__":
    lay_out()
    write_reference()
    sys.exit(subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict"], cwd=ROOT).returncode)
