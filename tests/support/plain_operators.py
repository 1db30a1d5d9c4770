"""What each operator of a filter says of a value, in plain Python."""

from collections.abc import Callable
from typing import Any


def contains(own: Any, wanted: Any) -> bool:
    if isinstance(own, list):
        return wanted in own
    return isinstance(own, (str, dict)) and isinstance(wanted, str) and wanted in own


def like(own: Any, pattern: str) -> bool:
    """By trying every split: the definition."""
    if not isinstance(own, str):
        return False
    if not pattern:
        return not own
    head, rest = pattern[0], pattern[1:]
    if head == "%":
        return any(like(own[n:], rest) for n in range(len(own) + 1))
    if head == "\\" and rest:
        head, rest = rest[0], rest[1:]
        return own[:1] == head and like(own[1:], rest)
    return bool(own) and (head == "_" or own[0] == head) and like(own[1:], rest)


def ordered(own: Any, wanted: Any, compare: Callable[[Any, Any], bool]) -> bool:
    kinds: Any = str if isinstance(wanted, str) else (int, float)
    return isinstance(own, kinds) and compare(own, wanted)


def subset(own: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(own, dict) and all(subset(own.get(key), inner) for key, inner in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(own, list) and len(own) == len(wanted)
        return same and all(map(subset, own, wanted))
    return bool(own == wanted)


PLAIN: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda own, wanted: own == wanted,
    "!=": lambda own, wanted: own != wanted,
    "in": lambda own, wanted: own in wanted,
    "not in": lambda own, wanted: own not in wanted,
    "<": lambda own, wanted: ordered(own, wanted, lambda a, b: a < b),
    "<=": lambda own, wanted: ordered(own, wanted, lambda a, b: a <= b),
    ">": lambda own, wanted: ordered(own, wanted, lambda a, b: a > b),
    ">=": lambda own, wanted: ordered(own, wanted, lambda a, b: a >= b),
    "contains": contains,
    "icontains": lambda own, wanted: contains(lowered(own), wanted.lower() if isinstance(wanted, str) else wanted),
    "any": lambda own, wanted: any(contains(own, one) for one in wanted),
    "all": lambda own, wanted: own is not None and all(contains(own, one) for one in wanted),
    "like": like,
    "ilike": lambda own, wanted: like(lowered(own), wanted.lower()),
    "equals": lambda own, wanted: own == wanted,
    "matches": lambda own, wanted: subset(own, wanted),
}


def lowered(own: Any) -> Any:
    if isinstance(own, str):
        return own.lower()
    if isinstance(own, list):
        return [one.lower() if isinstance(one, str) else one for one in own]
    return {key.lower(): inner for key, inner in own.items()} if isinstance(own, dict) else own
