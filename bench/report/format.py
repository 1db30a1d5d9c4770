"""How the report writes numbers and tables."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Fields = Mapping[str, Any]
_NUMBER = re.compile(r"$|[*]{0,2}-?[0-9]|error$")


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a column whose cells all begin with digits is aligned to the right."""
    body = [list(cells) for cells in body]
    numeric = [all(_NUMBER.match(cells[at]) for cells in body) for at in range(len(head))]
    lines = ["| " + " | ".join(head) + " |", "|" + "".join("---:|" if each else "---|" for each in numeric)]
    return "\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in body])


def tabulate(rows: Iterable[Fields], columns: Mapping[str, str | Callable[[Fields], str]]) -> str:
    """A table of rows: a column is a field of theirs, or what a function gives of a row."""
    cells = [
        [plain(row.get(what)) if isinstance(what, str) else what(row) for what in columns.values()] for row in rows
    ]
    return table(list(columns), cells)


def plain(value: Any) -> str:
    """The value of a field, as a table shows it."""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int):
        return f"{value:,}"
    return number(value) if isinstance(value, float) or value is None else str(value)


def details(summary: str, text: str) -> str:
    """Text in a folded block, closed until a reader opens it."""
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def number(value: float | None, digits: int = 3) -> str:
    """A number to that many significant digits, without exponents; whole from 1,000 on; empty for None."""
    if value is None or math.isnan(value):
        return ""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


def percent(share: float | None, places: int = 1) -> str:
    """A share as a percentage; empty for None."""
    return "" if share is None else f"{100 * share:.{places}f} %"


def score(value: float | None) -> str:
    """A share of questions to four places; empty for None."""
    return "" if value is None else f"{value:.4f}"


def sentence(text: str) -> str:
    """The text with a capital letter."""
    return text[:1].upper() + text[1:]


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; NaN without values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def order_names(names: Iterable[str], declared: Iterable[str]) -> list[str]:
    """Each name once: the declared ones in their order, then the others in theirs."""
    seen = list(dict.fromkeys(names))
    known = [name for name in declared if name in seen]
    return known + [name for name in seen if name not in known]
