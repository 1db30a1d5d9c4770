"""Shards on Ray beside one engine: ``python -m bench.shards``. Turns of SGD, in many namespaces and in one.

Three kinds of fan-outs, of 1, 5 and 20 queries:

``tenant``   all queries in one namespace, which lies whole in one shard
``tenants``  each query in another namespace, so that all shards are asked
``split``    all queries in one namespace, which is split over all shards

Rows by `phase`; times are microseconds, bytes are those of one fan-out, pickled, over all its shards:

``fan-out``  one caller. The engine (`shards` 0), the shards on Ray and the same shards in this process answer the same
             fan-out in turn. `alone` is the time of the slowest shard in this process, which waits for nobody, and
             `over` is what Ray's answer took beyond it, fan-out by fan-out. `empty` is a call of Ray to the same shards
             that asks nothing.
``agents``   many agents at once, a task each, by `asearch`
``service``  one shard with so many records in one namespace: the times of its answers, its bytes. The largest answers
             at several k, too: what a shard takes longer for k than for 1 is the most that it could save if another
             shard told it a k-th score first.
``move``     one caller writes single records to a namespace while another one goes to another shard: the times of its
             writes during the move, of which `most_us` is the longest, as `alone` those before it, and its `seconds`

Shards, owner and Ray share the machine's cores, and a thread that wakes may wait for the time slice of another.

Before it is timed, every kind of fan-out must repeat the engine's ids and scores bit for bit.
"""

import argparse
import asyncio
import pickle
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import fanrank as fr
from fanrank.shards.processes.links import Link, Waiting, call_all

from .harness import cases
from .harness.asking import fire
from .harness.command import Command, among, numbers, positive
from .harness.corpora import Tokens, load, prepare
from .harness.methods import FAN_OUT, K, are_equal, peak_rss_gib
from .harness.rows import round_digits

DOCUMENTS = 50_000
SIZES = (1, 5, FAN_OUT)
LEAST = 5
"""The fewest queries of an agent's fan-out."""
TENANT = 250
"""Records of a namespace that is not split."""
SPLIT = "all"
"""The namespace that is split."""
LAYOUTS = ("tenant", "tenants", "split")
SERVICE = (1_000, 50_000)
"""Records of the shard of a ``service`` row: a tenant's, and those of a part of a larger namespace."""
DEPTHS = (1, 10, 100, 1_000)
"""Hits of a query of the largest ``service`` shard."""
MOVED = (10_000,)
"""Records of a namespace that moves."""
WRITES = 200
"""Writes before it moves."""
PHASES = ("fan-out", "agents", "service", "move")
CHECKED = 10
"""Fan-outs of a kind that are compared before it is timed."""
OPTIONS: dict[str, Any] = {"analyzer": "minimal", "method": "lucene", "k1": cases.K1, "b": cases.B}


Row = dict[str, Any]


class Tap:
    """A link that keeps the time of each answer (us), and the messages and answers themselves where it is told."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.us: list[float] = []
        self.sent: list[Any] = []
        self.answers: list[Any] = []
        self.keeps = False

    @property
    def number(self) -> int:
        return self._link.number

    def send(self, verb: str, *arguments: Any, **keywords: Any) -> Waiting:
        began = time.perf_counter()
        waiting = self._link.send(verb, *arguments, **keywords)
        if verb == "ask":
            # A shard in this process has answered by now; one of Ray's has been sent the message.
            self.us.append(1e6 * (time.perf_counter() - began))
            if self.keeps:
                self.sent.append((verb, arguments, keywords))
                self.answers.append((True, waiting.result(None)))
        return waiting

    def close(self) -> None:
        self._link.close()


def tap(engine: fr.ShardedEngine) -> list[Tap]:
    """Taps on all shards of a memory."""
    taps = [Tap(link) for link in engine.coordinator.links]
    engine.coordinator.links = taps
    return taps


class Corpus:
    """Turns in namespaces of `TENANT` records, and all of them again in one; fan-outs from a seed."""

    def __init__(self, documents: int) -> None:
        tokens: Tokens = load(prepare(cases.CORPORA["sgd"]))
        self.documents = min(documents, tokens.documents)
        self.terms = tokens.query_terms()
        self._tokens = tokens
        self.tenants = [f"tenant-{number}" for number in range(-(-self.documents // TENANT))]

    def records(self) -> Iterator[fr.Record]:
        texts = self.texts(self.documents)
        yield from (fr.Record(f"r{n}", text, self.tenants[n // TENANT]) for n, text in enumerate(texts))
        yield from (fr.Record(f"r{n}", text, SPLIT) for n, text in enumerate(texts))

    def texts(self, count: int) -> list[str]:
        return [" ".join(terms) for terms, _ in zip(self._tokens.each_document(), range(count), strict=False)]

    def fan_outs(self, layout: str, count: int, seed: int = 0, size: int = FAN_OUT) -> list[list[fr.Query]]:
        """Fan-outs of a kind and size; the same seed gives the same."""
        draw = random.Random(f"{layout} {seed}")
        return [
            [
                fr.Query(terms=terms, namespace=name)
                for terms, name in zip(draw.sample(self.terms, size), self._names(layout, draw, size), strict=True)
            ]
            for _ in range(count)
        ]

    def _names(self, layout: str, draw: random.Random, size: int) -> list[str]:
        if layout == "tenants":
            return draw.choices(self.tenants, k=size)
        return [SPLIT if layout == "split" else draw.choice(self.tenants)] * size


def open_shards(corpus: Corpus, shards: int, folder: Path, transport: str) -> fr.ShardedEngine:
    """The corpus over so many shards; the namespace `SPLIT` is split over all of them."""
    engine = fr.ShardedEngine.open(
        folder, shards=shards, transport=transport, split_at=min(10_000, corpus.documents // 2), **OPTIONS
    )
    engine.add(corpus.records())
    engine.finish_splits()
    return engine


def timed(work: Callable[[], Any]) -> float:
    """Microseconds of a call."""
    began = time.perf_counter()
    work()
    return 1e6 * (time.perf_counter() - began)


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """(median, 99th percentile)."""
    middle, last = np.percentile(values, [50, 99]).tolist()
    return round_digits(middle), round_digits(last)


class Shards:
    """One memory over so many shards of Ray, its twin in this process, and the engine that both must repeat."""

    def __init__(self, corpus: Corpus, engine: fr.Engine, shards: int, folder: Path) -> None:
        self.corpus, self.engine, self.shards = corpus, engine, shards
        self.remote = open_shards(corpus, shards, folder / f"ray-{shards}", "ray")
        self.local = open_shards(corpus, shards, folder / f"local-{shards}", "local")
        self.taps = tap(self.local)
        self.sends = tap(self.remote)

    def close(self) -> None:
        self.remote.close()
        self.local.close()

    def verified(self, layout: str) -> bool:
        """Whether both forms repeat the engine's answers."""
        asked = self.corpus.fan_outs(layout, CHECKED, seed=1)
        return all(
            are_equal([self.engine.search(queries, K)], [form.search(queries, K)])
            for queries in asked
            for form in (self.remote, self.local)
        )

    def fan_out_rows(self, layout: str, count: int, size: int) -> list[Row]:
        """The rows of one caller and fan-outs of a size: the engine's, and that of the shards."""
        right = self.verified(layout)
        engine, remote, alone, empty = ([] for _ in range(4))
        messages = sum(len(one.us) for one in self.sends)
        for place, queries in enumerate(self.corpus.fan_outs(layout, count, size=size)):
            for one in self.taps:
                one.us.clear()
            works: list[Callable[[], None]] = [
                lambda queries=queries: engine.append(timed(lambda: self.engine.search(queries, K))),
                lambda queries=queries: remote.append(timed(lambda: self.remote.search(queries, K))),
                lambda queries=queries: [self.local.search(queries, K), None][1],
                lambda: empty.append(timed(self._ask_nothing)),
            ]
            for work in works if place % 2 else reversed(works):
                work()
            alone.append(max(us for one in self.taps for us in one.us))
        messages = sum(len(one.us) for one in self.sends) - messages
        over = [whole - own for whole, own in zip(remote, alone, strict=True)]
        sent, received = self._bytes(layout, size)
        whole: dict[str, Any] = dict(zip(("p50_us", "p99_us"), percentiles(remote), strict=True))
        for name, values in (("alone", alone), ("over", over), ("empty", empty)):
            whole |= dict(zip((f"{name}_p50_us", f"{name}_p99_us"), percentiles(values), strict=True))
        same: Row = {"phase": "fan-out", "case": layout, "fan_out": size, "fan_outs": count}
        same |= {"records": self.corpus.documents, "k": K, "verified": None}
        middle, last = percentiles(engine)
        own = {"shards": self.shards, "messages": round_digits(messages / count), "verified": right}
        return [
            {**same, "shards": 0, "p50_us": middle, "p99_us": last, "note": f"beside {self.shards}"},
            {**same, **own, "sent_bytes": sent, "received_bytes": received, **whole},
        ]

    def _ask_nothing(self) -> None:
        call_all(self.remote.coordinator.links, None, "newest")

    def _bytes(self, layout: str, size: int) -> tuple[float, float]:
        """Bytes of the messages and of the answers of a fan-out, on average."""
        asked = self.corpus.fan_outs(layout, CHECKED, seed=2, size=size)
        for one in self.taps:
            one.keeps = True
        for queries in asked:
            self.local.search(queries, K)
        sent, received = (
            sum(len(pickle.dumps(each, protocol=5)) for one in self.taps for each in getattr(one, name)) / len(asked)
            for name in ("sent", "answers")
        )
        for one in self.taps:
            one.keeps = False
            one.sent.clear()
            one.answers.clear()
        return round(sent), round(received)

    def agents_row(self, layout: str, agents: int, seconds: float) -> Row:
        """The row of many agents."""
        right = self.verified(layout)
        before, sent = self.remote.coalescer.stats(), sum(len(one.us) for one in self.sends)
        row = run_agents(self.remote, self.corpus, layout, agents, seconds)
        after, sent = self.remote.coalescer.stats(), sum(len(one.us) for one in self.sends) - sent
        launches = after["launches"] - before["launches"]
        per_launch = sent / launches
        return {
            **{**row, "shards": self.shards},
            "queries_per_launch": round_digits((after["queries"] - before["queries"]) / launches),
            "messages_per_launch": round_digits(per_launch),
            # A launch is at most one message a shard.
            "verified": right and per_launch <= self.shards,
        }


def run_agents(engine: fr.Engine | fr.ShardedEngine, corpus: Corpus, layout: str, agents: int, seconds: float) -> Row:
    """The row of many agents, each with its fan-outs of 5 to 20 queries."""
    prepared = [query for queries in corpus.fan_outs(layout, 500) for query in queries]
    tenants = len(prepared) // FAN_OUT

    async def ask(chosen: Sequence[int]) -> None:
        # Numbers that are drawn choose the place in a fan-out; the first chooses the fan-out, and so the namespace.
        start = chosen[0] % tenants * FAN_OUT
        await engine.asearch([prepared[start + number % FAN_OUT] for number in chosen], K)

    ms, queries = asyncio.run(fire([ask] * agents, len(prepared), seconds, 0, LEAST))
    while not ms:  # a machine so busy that no launch ended in time
        seconds *= 2
        ms, queries = asyncio.run(fire([ask] * agents, len(prepared), seconds, 0, LEAST))
    middle, last = percentiles([1e3 * each for each in ms])
    return {
        **{"phase": "agents", "case": layout, "shards": 0, "records": corpus.documents, "k": K, "fan_out": FAN_OUT},
        **{"agents": agents, "fan_outs": len(ms), "p50_us": middle, "p99_us": last, "queries_per_launch": None},
        **{"messages_per_launch": None, "verified": True},
        "seconds": round_digits(seconds),
        "queries_per_s": round_digits(queries / seconds),
    }


def service_rows(corpus: Corpus, records: int, depths: Sequence[int], count: int, folder: Path) -> list[Row]:
    """The rows of one shard in this process that holds so many records of one namespace, one for each k."""
    rows: list[Row] = []
    with fr.ShardedEngine.open(folder, shards=1, transport="local", split_at=10 * records, **OPTIONS) as engine:
        engine.add(fr.Record(f"r{n}", text, SPLIT) for n, text in enumerate(corpus.texts(records)))
        held = len(engine)
        taps = tap(engine)
        asked = corpus.fan_outs("split", count)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        for k in depths:
            for queries in asked[:CHECKED]:
                engine.search(queries, k)
            taps[0].us.clear()
            for queries in asked:
                engine.search(queries, k)
            middle, last = percentiles(taps[0].us)
            row: Row = {"phase": "service", "case": "split", "shards": 1, "records": held, "k": k, "fan_outs": count}
            row |= {"p50_us": middle, "p99_us": last, "disk_bytes_per_record": round_digits(size / held)}
            rows.append({**row, "note": f"peak of the process {peak_rss_gib()} GiB", "verified": None})
    return rows


def move_row(corpus: Corpus, records: int, folder: Path, transport: str) -> Row:
    """The row of a namespace of so many records that moves between two shards while others write."""
    written: list[float] = []

    def write() -> None:
        written.append(timed(lambda: engine.upsert([fr.Record("one", "a record", "others")])))

    with fr.ShardedEngine.open(folder, shards=2, transport=transport, split_at=10 * records, **OPTIONS) as engine:
        engine.add(fr.Record(f"r{n}", text, SPLIT) for n, text in enumerate(corpus.texts(records)))
        held = len(engine)
        for _ in range(WRITES):
            write()
        alone, written = percentiles(written), []
        (home,) = engine.coordinator.placement.homes(SPLIT)
        moved = threading.Event()

        def go_on() -> None:
            while not moved.is_set():
                write()

        writer = threading.Thread(target=go_on)
        writer.start()
        try:
            took = timed(lambda: engine.coordinator.place(SPLIT, (1 - home,)))
        finally:
            moved.set()
            writer.join()
        right = engine.count(namespace=SPLIT) == held
    middle, last = percentiles(written)
    row: Row = {"phase": "move", "case": transport, "shards": 2, "records": held, "verified": right}
    row |= {
        "p50_us": middle,
        "p99_us": last,
        "most_us": round_digits(max(written)),
        "seconds": round_digits(took / 1e6),
    }
    return {**row, "alone_p50_us": alone[0], "alone_p99_us": alone[1]}


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Row]:
    """All rows of a run."""
    phases, count, agents = options.phases, options.fan_outs, options.agents
    corpus = Corpus(options.documents)
    beside = {"fan-out", "agents"} & {*phases}
    engine = fr.Engine.from_records(corpus.records() if beside else (), **OPTIONS)
    for layout in LAYOUTS if "agents" in phases else ():
        say(f"one engine, {layout}: {agents} agents")
        yield run_agents(engine, corpus, layout, agents, options.seconds)
    for number in options.shards if beside else ():
        with tempfile.TemporaryDirectory(prefix="fanrank-shards-") as name, ExitStack() as stack:
            say(f"{number} shards: build")
            several = Shards(corpus, engine, number, Path(name))
            stack.callback(several.close)
            for layout in LAYOUTS:
                for size in SIZES if "fan-out" in phases else ():
                    say(f"{number} shards, {layout}: {count} fan-outs of {size}")
                    yield from several.fan_out_rows(layout, count, size)
                if "agents" in phases:
                    say(f"{number} shards, {layout}: {agents} agents")
                    yield several.agents_row(layout, agents, options.seconds)
    for records in options.service if "service" in phases else ():
        say(f"one shard of {records:,} records")
        with tempfile.TemporaryDirectory(prefix="fanrank-shards-") as name:
            depths = DEPTHS if records == max(options.service) else (K,)
            yield from service_rows(corpus, records, depths, count, Path(name) / "memory")
    for records in options.moved if "move" in phases else ():
        for transport in ("local", "ray"):
            say(f"{records:,} records move, {transport}")
            with tempfile.TemporaryDirectory(prefix="fanrank-shards-") as name:
                yield move_row(corpus, records, Path(name) / "memory", transport)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 0 if all answers were right, else 1."""
    command = Command("shards", "Shards on Ray beside one engine.")
    command.add("--phases", type=among(PHASES), default=PHASES)
    command.add("--documents", type=positive, default=DOCUMENTS, help=f"turns of SGD (default {DOCUMENTS})")
    command.add("--shards", type=numbers, default=(1, 2, 4))
    command.add("--service", type=numbers, default=SERVICE, help="records of one shard that is measured alone")
    command.add("--moved", type=numbers, default=MOVED, help="records of a namespace that moves")
    command.add("--fan-outs", type=positive, default=150, help="of one caller (default 150)")
    command.add("--agents", type=positive, default=100)
    command.add("--seconds", type=float, default=2.0, help="of the agents (default 2)")
    options = command.parse(arguments)
    import ray  # the rows say its version

    # One Ray for all memories: starting one takes seconds.
    ray.init("local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    command.common |= {"machine": {**command.common["machine"], "ray": ray.__version__}}
    try:
        for row in measure(options, command.say):
            command.keep([row])
    finally:
        ray.shutdown()
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
