"""Parses the values of command line options: filters, times, durations, and the kind of data at a path."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from ..errors import ParameterError, StorageError
from ..evaluate.dataset import read_json
from ..index.columns import KINDS
from ..moments import to_seconds, to_span
from ..records.checks import is_finite
from ..records.filters import TIMES, ColumnComparison, Filter, all_of, parse_filter
from ..records.record import CATEGORIES, NUMBERS
from ..records.values import ORDERINGS
from ..storage.index_files import MANIFEST
from ..storage.row_codec import RECORDS

STANDARD = "-"
"""What stands for standard input or output in place of a file."""


def check_source(file: str, path: str) -> None:
    """Check that records can be read from `file` into the directory `path`, before the directory is made.

    Raises `StorageError` for a file that cannot be read, `ParameterError` for a directory named ``-``.
    """
    if path == STANDARD:
        raise ParameterError(f"{STANDARD} stands for standard input, and records go to a directory; give its path")
    exists = os.path.isfile(file) or os.path.isdir(file)
    if file == STANDARD or (os.path.exists(file) and not exists):
        return  # a pipe can be opened only once
    try:
        open(file, "rb").close()
    except OSError as error:
        raise StorageError(f"{file}: cannot be read: {error.strerror}") from error


FILTER_HELP = (
    "whose column has this value; also != and, for numbers and times, < <= > >=, or a filter as JSON. A number, true "
    "or false stands for the text and for the value, unless the column holds texts alone."
)


def parse_filters(filters: tuple[str, ...], columns: Mapping[str, str]) -> Filter | None:
    """One filter for all --filter options, on a memory with these `Engine.columns`.

    Equalities on one column are alternatives; all else must hold.
    """
    kinds = {**columns, **dict.fromkeys(CATEGORIES, "category"), **dict.fromkeys(NUMBERS, "number")}
    equal: dict[str, list[str | float]] = {}
    parts: list[Filter] = []
    for text in filters:
        if text.startswith("{"):
            try:
                data = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise ParameterError(f"--filter {text[:80]!r}: not JSON: {error}") from None
            parsed = parse_filter(data)
            parts += [] if parsed is None else [parsed]
            continue
        match = re.fullmatch("([^=!<>]*)(=|!=|<=|>=|<|>)(.*)", text, re.DOTALL)
        if match is None:
            raise ParameterError(f"--filter takes COLUMN=VALUE, with one of = != < <= > >=, or JSON, not {text!r}")
        name, comparison, value = match.groups()
        kind = "number" if comparison in ORDERINGS else kinds.get(name, "json")
        values = (_moment(value, f"--filter {text!r}: "),) if name in TIMES else _meanings(value, kind, text)
        if comparison == "=":
            equal.setdefault(name, []).extend(values)
        elif comparison == "!=":
            parts.append(ColumnComparison(name, "not in", values))
        else:
            parts.append(ColumnComparison(name, comparison, values[0]))
    parts += [ColumnComparison(name, "in", tuple(values)) for name, values in equal.items()]
    return all_of(*parts)


def _meanings(value: str, kind: str, text: str) -> tuple[str | float, ...]:
    """The values of a column of this kind that the words of `text`, a --filter, stand for."""
    if kind == "category":
        return (value,)
    try:
        number = _number(value) if kind == "number" else json.loads(value)
    except (ValueError, RecursionError):
        if kind == "number":
            raise ParameterError(f"--filter {text!r}: {value!r} is no number") from None
        return (value,)
    if kind == "number":
        return (number,)
    return (value, number) if isinstance(number, (int, float)) and is_finite(number) else (value,)


def _number(text: str) -> float:
    """The number, without the underscores that Python allows in one. Raises `ValueError`."""
    if "_" in text:
        raise ValueError(f"{text!r} is no number")
    return float(text)


def parse_columns(options: tuple[str, ...], name: str) -> dict[str, str]:
    """Columns and their kinds from NAME:KIND. Raises `ParameterError`; `name` is that of the option."""
    columns: dict[str, str] = {}
    for option in options:
        column, separator, kind = option.rpartition(":")
        if not separator or kind not in KINDS or column in columns:
            kinds = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
            raise ParameterError(f"{name} takes NAME:KIND, each name once and as {kinds}, not {option!r}")
        columns[column] = kind
    return columns


def parse_moment(text: str | None) -> float | None:
    """Seconds since 1970-01-01 UTC from a number or an ISO 8601 date. Raises `ParameterError`."""
    return None if text is None else _moment(text, "")


def _moment(text: str, where: str) -> float:
    try:
        return _number(text)
    except ValueError:
        try:
            return to_seconds(text)
        except ValueError:
            raise ParameterError(f"{where}{text!r} is neither seconds since 1970 nor an ISO 8601 date") from None


def parse_duration(text: str | None) -> float | None:
    """Seconds from a number with a unit: 90s, 30m, 12h, 7d, 2w; without one, seconds. Raises `ParameterError`."""
    if text is None:
        return None
    try:
        return to_span(text)
    except ValueError:
        raise ParameterError(f"{text!r} is no duration; write 90s, 30m, 12h, 7d or 2w") from None


def parse_object(text: str | None) -> Any:
    """A JSON object. Raises `ParameterError`."""
    try:
        value = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if isinstance(value, dict) or text is None:
        return value
    raise ParameterError(f'{text[:80]!r} is no JSON object, such as {{"importance": 0.5}}')


def parse_windows(text: str | None) -> Any:
    """A number of time windows, or "auto". Raises `ParameterError`."""
    if text is None or text == "auto":
        return text
    if not re.fullmatch("[0-9]+", text):
        raise ParameterError(f"--windows takes a number or 'auto', not {text!r}")
    return int(text)


def detect_kind(path: str) -> str:
    """Returns "records" or the kind of dataset that a path holds.

    A directory is BEIR and JSON lines are records. LoCoMo and LongMemEval are recognised by their keys. Raises
    `ParameterError` for anything else.
    """
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, RECORDS)):
            raise ParameterError(
                f"{path}: is an engine's directory; this command takes records (JSON lines) or a dataset. "
                f"`fanrank stats {path} --verify` compares an index with its records"
            )
        if os.path.exists(os.path.join(path, MANIFEST)):
            raise ParameterError(
                f"{path}: is a saved index, which keeps no texts; give the records that it was made from (JSON lines)"
            )
        return "beir"
    if path.endswith(".jsonl"):
        return "records"
    data = read_json(path)
    keys = set(data[0]) if isinstance(data, list) and data and isinstance(data[0], dict) else set()
    if "conversation" in keys:
        return "locomo"
    if "haystack_sessions" in keys:
        return "longmemeval"
    raise ParameterError(f"{path}: neither a BEIR directory, JSON lines, LoCoMo nor LongMemEval; say --kind")
