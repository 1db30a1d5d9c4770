"""The methods that answer a fan-out over a memory, declared once for `growth` and `session`, and their rows' fields."""

import resource
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import fanrank as fr
from fanrank.engine.backends import choose as backends

from .rows import round_digits
from .synthetic import WEEK, SyntheticQuestion

FAN_OUT = 20
K = 10
HALF_LIFE = WEEK


@dataclass(frozen=True)
class Method:
    """One way to answer: `batch` queries a call on `backend` (``cpu``: the preferred one there).

    `exact` is the name of the method whose answers this one must repeat bit for bit; empty for none.
    A method with `windows` must give the exhaustive answer over the same time range.
    """

    name: str
    execution: str = "auto"
    backend: str = "cpu"
    batch: int = FAN_OUT
    windows: int | str | None = None
    half_life: float | None = None
    exact: str = ""

    def queries(self, questions: Iterable[SyntheticQuestion]) -> list[fr.Query]:
        """The questions as queries of this method."""
        return [fr.Query(q.text, now=q.now, half_life=self.half_life, windows=self.windows) for q in questions]


CPU_METHODS = (
    Method("sequential", "exhaustive", backend="numpy", batch=1, exact="vectorised"),
    Method("vectorised", "exhaustive"),
    Method("maxscore", "pruned", exact="vectorised"),
    Method("temporal", windows=4),
    Method("temporal-auto", windows="auto"),
    Method("decay", half_life=HALF_LIFE, exact="decay-exhaustive"),
    Method("decay-exhaustive", "exhaustive", half_life=HALF_LIFE),
)


def list_methods() -> tuple[Method, ...]:
    """The CPU's methods, and three of each GPU backend that serves here."""
    usable = [status.name for status in backends.statuses() if status.usable and not status.by_name]
    devices = [
        method
        for name in backends.DEVICES
        if name in usable
        for method in (
            Method(name, backend=name, exact="vectorised"),
            Method(f"{name}-temporal", backend=name, windows=4),
            Method(f"{name}-decay", backend=name, half_life=HALF_LIFE, exact="decay-exhaustive"),
        )
    ]
    return (*CPU_METHODS, *devices)


class Backends:
    """The backend of each method, made once. One engine serves them all in turn."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def serve(self, engine: fr.Engine, method: Method) -> str:
        """Let the method's backend serve the engine, and return its name. Raises `BackendUnavailableError`."""
        if method.backend not in self._made:
            cpu = method.backend == "cpu"
            self._made[method.backend] = backends.choose(among=backends.CPU) if cpu else backends.choose(method.backend)
        engine.backend = self._made[method.backend]
        return str(engine.backend.name)


def import_analyzer() -> None:
    """Import what analysing a text needs, so that no timed call includes the import."""
    fr.Engine().analyzer("running")


def answer(
    engine: fr.Engine, method: Method, queries: Sequence[fr.Query], *, threads: int = 1, timing: bool = False
) -> list[fr.Hits]:
    """The answers in calls of `Method.batch` queries, ids included."""
    how: Any = {"threads": threads if method.batch > 1 else 1, "execution": method.execution, "timing": timing}
    answers = []
    for start in range(0, len(queries), method.batch):
        answers.append(engine.search(queries[start : start + method.batch], K, **how))
        _ = answers[-1].ids
    return answers


def are_equal(one: Sequence[fr.Hits], other: Sequence[fr.Hits]) -> bool:
    """Whether two lists of answers hold the same ids and scores, bit for bit. Their calls may differ in size."""

    def joined(answers: Sequence[fr.Hits], field: str) -> np.ndarray[Any, Any]:
        return np.concatenate([getattr(hits, field) for hits in answers])

    return all(np.array_equal(joined(one, field), joined(other, field)) for field in ("counts", "scores", "ids"))


def count_found(answers: Sequence[fr.Hits], questions: Sequence[SyntheticQuestion]) -> int:
    """The number of questions whose gold record is among their hits."""
    ids = np.concatenate([hits.ids for hits in answers])
    return int(sum(question.gold in row for question, row in zip(questions, ids.tolist(), strict=True)))


def newest_windows(times: npt.ArrayLike, count: int, window: float = WEEK) -> float:
    """The time at which the `count`-th newest non-empty window begins."""
    windows = np.unique(np.floor(np.asarray(times) / window))
    return float(windows[-min(count, len(windows))] * window)


def quartiles_of(values: Sequence[float]) -> tuple[float, float, float, float]:
    """(first quartile, median, third quartile, 99th percentile), to four digits."""
    first, median, third, last = np.percentile(np.asarray(values), [25, 50, 75, 99]).tolist()
    return round_digits(first), round_digits(median), round_digits(third), round_digits(last)


def peak_rss_gib() -> float:
    """The most memory that this process has held so far, GiB."""
    try:
        # Not `getrusage`: a child process inherits its figure from its parent.
        status = Path("/proc/self/status").read_text()
        return round(int(status.split("VmHWM:")[1].split()[0]) / 2**20, 3)
    except (OSError, IndexError):
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30, 3)
