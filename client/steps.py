"""What a verb of a client does, apart from how it waits: `Client` and `AsyncClient` run the same steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from .calls import Call

P = ParamSpec("P")
R = TypeVar("R")

Steps: TypeAlias = Generator[Call, dict[str, Any], R]
"""The calls of a verb, one after another; each is sent back its answer. What it returns is the verb's answer."""


def advance(verb: Steps[R], answer: dict[str, Any] | None = None) -> tuple[Call | None, Any]:
    """Sends a verb an answer: (its next call, None), or (None, what it returns)."""
    try:
        return verb.send(answer), None  # type: ignore[arg-type]
    except StopIteration as end:
        return None, end.value


def several(calls: Iterable[Call]) -> Steps[list[dict[str, Any]]]:
    """The answers of these calls, in their order. Each call is sent once the one before it is answered."""
    found: list[dict[str, Any]] = []
    for call in calls:
        found += ((yield call),)
    return found


def steps(verb: Callable[Concatenate[Any, P], Steps[R]]) -> Callable[Concatenate[Any, P], R]:
    """The verb that blocks, of its steps, which it keeps as `steps`."""
    answer = verb.__annotations__["return"]
    if answer.startswith("Steps["):  # a signature shows what a caller gets
        verb.__annotations__["return"] = answer[len("Steps[") : -1]

    @wraps(verb)
    def run(self: Any, *given: P.args, **keywords: P.kwargs) -> R:
        result: R = self._run(verb(self, *given, **keywords))
        return result

    run.steps = verb  # type: ignore[attr-defined]
    made: Any = run
    return made  # type: ignore[no-any-return]
