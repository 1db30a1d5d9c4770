"""The adapters for other frameworks, beside those frameworks' own stores: ``python -m bench.integrations``.

Appends to ``integrations.jsonl`` in the folder of results rows of two parts:

- ``fan-out``: 20 questions in one call. An adapter and the plain engine below it, which gives the same records with
  texts and payload, take turns call by call. ``overhead`` is the median of their ratios, less 1, with its quartiles;
  ``cpu_overhead`` is the same of the processor's time, which other programs of a shared machine disturb less.
- ``agents``: 100 callers at once, each of whom asks 5 questions, waits for the answer, and asks again.

All systems hold the same 50,000 records of SGD, and answer the same questions, the 10 best of each, in one process and
one after another. Vectors are drawn at random, 64 components each, and looked up where a framework embeds: a model's
time is in no figure. Before an adapter is timed, its answers are compared with the plain engine's, bit for bit.

A peer's call that takes long is repeated less often, and fewer agents ask at once where 100 would take too long. A
framework that is not installed is left out by its name.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from .harness.adapters import ADAPTERS, PEERS, Adapter, PlainEngine, System, Work
from .harness.methods import quartiles_of, round_digits, stamp_rows
from .harness.options import names, progress
from .harness.paths import RESULTS, data_folder
from .harness.workload import replay_sgd

RECORDS, QUESTIONS, DIMENSION, K = 50_000, 400, 64, 10
FAN_OUT, AGENTS, AGENTS_ASK = 20, 100, 5
PARTS = ("fan-out", "agents")
LEAST_CALLS = 2
"""Calls that are timed, however long they take."""
CHECKED = 5
"""Fan-outs of an adapter that are compared."""
WARM_CALLS = 3


@dataclass(frozen=True)
class Limits:
    """How long each cell may take, in seconds, and how many calls it may make."""

    seconds: float = 4.0
    most: int = 400
    agents: int = AGENTS
    agents_seconds: float = 3.0


def load_work(records: int, questions: int) -> Work:
    """The first records of SGD as an agent's memory, and users' questions from what follows them."""
    replayed = replay_sgd(data_folder() / "sgd" / "train.turns.jsonl.gz")
    kept = [*islice(replayed, records)]
    asked = list(dict.fromkeys(each.text for each in islice(replayed, 20 * questions) if each.role == "user"))
    draw = np.random.default_rng(20)
    vectors, of_questions = (
        draw.standard_normal((count, DIMENSION), dtype=np.float32) for count in (len(kept), questions)
    )
    # Texts that recur have one vector, as a model would give it.
    place: dict[str, int] = {}
    vectors = vectors[[place.setdefault(record.text, number) for number, record in enumerate(kept)]]
    known = {*place}
    asked = [text for text in asked if text not in known][:questions]
    return Work(
        ids=[record.id for record in kept],
        texts=[record.text for record in kept],
        metadata=[{"session": record.session, "role": record.role, "user": record.user} for record in kept],
        vectors=vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        questions=asked,
        question_vectors=(of_questions / np.linalg.norm(of_questions, axis=1, keepdims=True))[: len(asked)],
        k=K,
    )


def fan_outs(work: Work, size: int, seed: int) -> Callable[[], list[int]]:
    """Draws fan-outs of different questions."""
    draw = np.random.default_rng(seed)
    return lambda: draw.choice(len(work.questions), min(size, len(work.questions)), replace=False).tolist()


def seconds_of(call: Callable[[list[int]], Any], questions: list[int]) -> tuple[float, float]:
    """The seconds of a call: of the wall, and of the processor."""
    busy, began = time.process_time(), time.perf_counter()
    call(questions)
    return time.perf_counter() - began, time.process_time() - busy


def is_right(adapter: Adapter, size: int) -> bool:
    """Whether fan-outs get the plain engine's answers, called and awaited."""
    draw = fan_outs(adapter.work, size, 1)
    for _ in range(CHECKED):
        questions = draw()
        if not adapter.right(questions, adapter.ask(questions)):
            return False
        if adapter.awaited and not adapter.right(questions, asyncio.run(_one(adapter, questions))):
            return False
    return True


async def _one(system: System, questions: Sequence[int]) -> Any:
    return await system.wait(questions)


def measure_fan_outs(system: System, limits: Limits) -> dict[str, Any]:
    """The fields of one row: calls of `FAN_OUT` questions, and beside an adapter the plain engine's."""
    draw = fan_outs(system.work, FAN_OUT, 2)
    base = system.plain if isinstance(system, Adapter) and not isinstance(system, PlainEngine) else None
    first = seconds_of(system.ask, draw())
    # A call of a second is warm enough, and is counted.
    spent: list[tuple[float, float]] = [first] if base is None and first[0] > 1.0 else []
    plain: list[tuple[float, float]] = []
    for _ in range(0 if spent else WARM_CALLS):
        system.ask(draw())
    until = time.perf_counter() + limits.seconds
    while len(spent) < limits.most and (time.perf_counter() < until or len(spent) < LEAST_CALLS):
        questions = draw()
        # The second of two equal calls finds warm caches, so each goes first every other time.
        if base is not None and len(spent) % 2 == 0:
            plain.append(seconds_of(base, questions))
        spent.append(seconds_of(system.ask, questions))
        if base is not None and len(plain) < len(spent):
            plain.append(seconds_of(base, questions))
    wall = [seconds for seconds, _ in spent]
    row = {
        "queries": FAN_OUT,
        "calls": len(spent),
        "queries_per_s": round_digits(FAN_OUT * len(spent) / sum(wall)),
        **times_of(wall),
    }
    if plain:
        row["plain_ms"] = round_digits(1e3 * float(np.median([seconds for seconds, _ in plain])))
        for clock, name in enumerate(("overhead", "cpu_overhead")):
            # A clock of the processor that ticks slowly may show 0 for a short call.
            pairs = [(own[clock], below[clock]) for own, below in zip(spent, plain, strict=True) if below[clock] > 0]
            low, middle, high, _ = quartiles_of([own / below for own, below in pairs] or [1.0])
            row |= {
                name: round_digits(middle - 1.0),
                f"{name}_low": round_digits(low - 1.0),
                f"{name}_high": round_digits(high - 1.0),
            }
    return row


def times_of(seconds: Sequence[float]) -> dict[str, float]:
    """The median and the 99th percentile, in milliseconds."""
    middle, last = np.percentile(seconds, [50, 99]).tolist()
    return {"p50_ms": round_digits(1e3 * middle), "p99_ms": round_digits(1e3 * last)}


def measure_agents(system: System, limits: Limits, milliseconds: float) -> dict[str, Any]:
    """The fields of one row: agents who ask at once. `milliseconds` is what a fan-out alone takes."""
    # Where one call of each agent of a peer takes longer than the cell may, fewer ask.
    alone = milliseconds / 1e3 * AGENTS_ASK / FAN_OUT
    fewer = limits.agents if isinstance(system, Adapter) else int(2 * limits.agents_seconds / alone)
    agents = max(1, min(limits.agents, fewer))
    spent, wall = asyncio.run(_all_agents(system, agents, limits.agents_seconds))
    return {
        "queries": AGENTS_ASK,
        "agents": agents,
        "way": system.awaited,
        "calls": len(spent),
        "queries_per_s": round_digits(AGENTS_ASK * len(spent) / wall),
        **times_of(spent),
    }


async def _all_agents(system: System, agents: int, seconds: float) -> tuple[list[float], float]:
    """The seconds of each call, and of all. Every agent ends the call that it began."""
    # `to_thread` takes the loop's pool, which would hold fewer threads than there are agents.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(agents))
    spent: list[float] = []
    began = time.perf_counter()
    until = began + seconds

    async def agent(number: int) -> None:
        draw = fan_outs(system.work, AGENTS_ASK, 100 + number)
        while (started := time.perf_counter()) < until:
            await system.wait(draw())
            spent.append(time.perf_counter() - started)

    await asyncio.gather(*(agent(number) for number in range(agents)))
    return spent, time.perf_counter() - began


def measure(kind: type[System], work: Work, parts: Sequence[str], limits: Limits) -> list[dict[str, Any]]:
    """The rows of one system. Raises `ImportError` where it cannot be made here."""
    began = time.perf_counter()
    system = kind(work)
    built = time.perf_counter() - began
    gc.collect()
    try:
        common = {
            "work": system.kind,
            "system": system.name,
            "ours": isinstance(system, Adapter),
            "compared_with": system.of,
            "package": system.package,
            "version": system.version(),
            "records": len(work.ids),
            "k": work.k,
            "dimension": work.dimension if system.kind == "vectors" else None,
            "build_s": round_digits(built),
            "verified": is_right(system, FAN_OUT) if isinstance(system, Adapter) else None,
            "note": system.note,
        }
        alone = measure_fan_outs(system, limits)
        rows = [{"part": "fan-out", **common, **alone}] if "fan-out" in parts else []
        if "agents" in parts and system.awaited:
            rows.append({"part": "agents", **common, **measure_agents(system, limits, alone["p50_ms"])})
        return rows
    finally:
        system.close()


def render(row: dict[str, Any]) -> str:
    """A row as a line."""
    asked = f"{row['agents']} x {row['queries']}" if row["part"] == "agents" else f"{row['queries']}"
    line = f"{row['part']:8} {row['system']:38} {asked:>8}  {row['queries_per_s']:>10,.0f} queries/s"
    line += f"  p50 {row['p50_ms']} ms  p99 {row['p99_ms']} ms"
    if "overhead" in row:
        low, middle, high = (100 * row[name] for name in ("overhead_low", "overhead", "overhead_high"))
        line += f"  {middle:+.1f} % over the engine [{low:+.1f}, {high:+.1f}]"
        line += f", of the processor {100 * row['cpu_overhead']:+.1f} %"
    return line + ("  WRONG" if row["verified"] is False else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, append the rows, print them. Returns 1 if an adapter's answer was wrong, else 0."""
    known = [kind.name for kind in (*ADAPTERS, *PEERS)]
    parser = argparse.ArgumentParser(prog="python -m bench.integrations", description=__doc__)
    parser.add_argument("--parts", type=names, default=PARTS, help=f"of {','.join(PARTS)}")
    parser.add_argument("--systems", type=names, default=(), help=f"of {', '.join(known)}; by default all")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--seconds", type=float, default=Limits.seconds, help="of a cell of fan-outs")
    parser.add_argument("--small", action="store_true", help="few records and calls, to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder that the rows go to")
    options = parser.parse_args(arguments)
    for given, there in ((options.parts, PARTS), (options.systems, known)):
        if unknown := [name for name in given if name not in there]:
            parser.error(f"no {', '.join(unknown)}; there are: {', '.join(there)}")
    limits = Limits(0.2, 5, 8, 0.2) if options.small else Limits(options.seconds, agents_seconds=0.75 * options.seconds)
    work = load_work(300 if options.small else options.records, 60 if options.small else QUESTIONS)
    common, say, right = stamp_rows("integrations"), progress(), True
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "integrations.jsonl").open("a", encoding="utf-8") as handle:
        for kind in (*ADAPTERS, *PEERS):
            if options.systems and kind.name not in options.systems:
                continue
            say(f"integrations: {kind.name}")
            try:
                rows = measure(kind, work, options.parts, limits)
            except ImportError as error:
                say("")
                print(f"left out: {kind.name}: {error}", flush=True)
                continue
            say("")
            for row in rows:
                print(render(row), flush=True)
                handle.write(json.dumps({**row, **common}) + "\n")
                handle.flush()
                right = right and row["verified"] is not False
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
