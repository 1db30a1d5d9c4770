"""The interface of every fusion method, and the checks that the methods share."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import ClassVar, Protocol

from ..errors import ParameterError
from .candidates import Candidates, Fused


class Fusion(Protocol):
    """A frozen dataclass whose fields are plain JSON values; calling it scores a batch's candidates.

    It computes elementwise in float64 and in a fixed order, so a query's scores depend on its own candidates alone. A
    candidate is `kept` if a channel that the fusion reads listed it. Making a fusion raises `ParameterError` for a
    field out of range; calling it raises `ParameterError` for a channel that it names and the batch lacks.
    """

    name: ClassVar[str]

    @property
    def reads(self) -> tuple[str, ...]:
        """The channels that the fusion names; a batch must have them."""

    def __call__(self, candidates: Candidates) -> Fused: ...


def check_channels(fusion: Fusion, channels: Iterable[str]) -> None:
    """Raise `ParameterError` unless `channels` include every channel that the fusion names."""
    there = list(channels)
    for name in fusion.reads:
        if name not in there:
            raise ParameterError(
                f"the fusion {fusion.name!r} names the channel {name!r}; the strategy has: {', '.join(there) or 'none'}"
            )


def check_number(what: str, value: object, low: float, high: float = math.inf, *, above: bool = False) -> None:
    """Raise `ParameterError` unless `value` is a finite number from `low` to `high`.

    With `above` the number must be greater than `low`. `what` names the value in the message.
    """
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if (low < number if above else low <= number) and number <= min(high, sys.float_info.max):
        return
    lower = f"above {low:g}" if above else f"of at least {low:g}"
    upper = "" if high == math.inf else f" and at most {high:g}"
    raise ParameterError(f"{what} must be a finite number {lower}{upper}, not {value!r}")


def check_pair(first: object, second: object) -> None:
    """Raise `ParameterError` unless these are the names of two different channels."""
    check_name("the first channel", first)
    check_name("the second channel", second)
    if first == second:
        raise ParameterError(f"a fusion of two channels needs two names, not {first!r} twice")


def check_name(what: str, value: object) -> None:
    """Raise `ParameterError` unless `value` is a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ParameterError(f"{what} must be a name, not {value!r}")


def checked_table(what: str, table: object, *, above: bool = False) -> dict[str, float]:
    """Check a mapping of names to finite numbers and return a copy; None gives {}.

    The numbers must be at least 0; with `above` they must be greater. Raises `ParameterError`.
    """
    if table is None:
        return {}
    if not isinstance(table, Mapping):
        raise ParameterError(f"{what} must be a mapping of names to numbers, not {table!r}")
    for name, value in table.items():
        check_name(f"a name in {what}", name)
        check_number(f"{what}[{name!r}]", value, 0.0, above=above)
    return dict(table)
