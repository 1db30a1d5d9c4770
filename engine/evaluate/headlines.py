"""The headlines of the five sources, and what this package gives in their place: what `fanrank published` prints.

A figure here is never stored: it is computed, or measured over data that the caller has.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..encoders.encoder import Encoder
from ..engine import Engine
from ..route.cost import amortised, capacity
from .beir import load_beir
from .command import evaluate
from .presets import find_preset

LOCOMO, SCIFACT = "locomo/locomo10.json", "scifact"
PATHS = {LOCOMO: "locomo", SCIFACT: "beir"}
"""The data that a headline can be measured over, below the caller's folder, and their kinds."""

GROWTH_RECORDS = (4_052, 40_081, 239_799, 999_978, 1_998_918, 3_997_578, 4_998_640)
GROWTH_US = {
    "sequential": (167, 635, 4_420, 20_400, 53_600, 112_000, 159_000),
    "SIMD": (21, 139, 846, 3_510, 10_300, 20_500, 30_800),
    "MaxScore": (19, 110, 649, 2_710, 11_000, 19_600, 27_700),
    "temporal": (25, 30, 37, 48, 56, 85, 90),
}
"""Microseconds a query at each of `GROWTH_RECORDS`, as AgentIR's Table 2 prints them."""


@dataclass(frozen=True)
class Evaluated:
    """A metric of a strategy under a preset, over one of `PATHS`."""

    path: str
    preset: str
    metric: str
    strategy: str = "bm25"
    whole: bool = False
    """Whether a session is embedded as one text."""

    def command(self) -> str:
        """The command that prints it."""
        whole = " --whole" if self.whole else ""
        return f"fanrank eval {PATHS[self.path]} {self.path} --preset {self.preset}{whole} --strategy {self.strategy}"


@dataclass(frozen=True)
class Beside:
    """BM25 beside SQL's LIKE over one of `PATHS`: times and what the first five hits hold."""

    path: str

    def command(self) -> str:
        """The command that prints it."""
        return "fanrank published --data FOLDER"

    def measure(self, folder: Path, queries: int = 50) -> str:
        """Of the first `queries` questions. LIKE's order is the number of the question's words that a text holds."""
        preset = find_preset("agentir", PATHS[self.path])
        dataset = load_beir(folder / self.path)
        engine = Engine(analyzer=preset.analyzer, method=preset.method, k1=preset.k1, b=preset.b)
        database = sqlite3.connect(":memory:")
        database.execute("CREATE TABLE documents (id TEXT, text TEXT)")
        records = list(dataset.records)
        engine.add(records)
        database.executemany("INSERT INTO documents VALUES (?, ?)", ((one.id, one.text) for one in records))
        seconds, found = np.zeros(2), np.zeros((2, 2))
        asked = dataset.queries[:queries]
        for query in asked:
            gold = {name for name, grade in dataset.relevant[str(query.id)].items() if grade >= 1}
            words = list(dict.fromkeys(re.findall(r"\w+", query.text)))
            held = " + ".join(["(text LIKE ?)"] * len(words))
            sql = f"SELECT id, {held} AS held FROM documents WHERE held > 0 ORDER BY held DESC, rowid LIMIT 5"
            begun = time.perf_counter()
            theirs = [row[0] for row in database.execute(sql, [f"%{word}%" for word in words])]
            between = time.perf_counter()
            own = [name for name in engine.search([query], k=5).ids[0] if name is not None]
            seconds += between - begun, time.perf_counter() - between
            for place, names in enumerate((theirs, own)):
                right = len(gold & set(names))
                found[place] += right / 5, right / len(gold)
        (like_p, like_r), (own_p, own_r) = found / len(asked)
        return (
            f"{seconds[0] / seconds[1]:.0f} times as fast; P@5 {own_p:.3f} and {like_p:.3f} of LIKE, "
            f"R@5 {own_r:.3f} and {like_r:.3f}"
        )


@dataclass(frozen=True)
class Headline:
    """A figure that a source prints. ``here`` says how to get this package's; a sentence tells why there is none."""

    source: str
    where: str
    what: str
    published: str
    here: Evaluated | Beside | Callable[[], str] | str
    differs: str = ""
    """Why the figure here may be another."""

    @property
    def command(self) -> str:
        """The command that measures it; empty where it is computed or there is none."""
        return self.here.command() if isinstance(self.here, Evaluated | Beside) else ""


def simulated_session(method: str, turns: int = 800, seed: int = 42) -> str:
    """A session by the protocol that AgentIR prints for Table 3: the seconds in sum, and the share of slow turns.

    The memory grows linearly over the records of Table 2. A turn asks Poisson(8) questions, within 3 to 20. A question
    takes the time of the table's curve at that size, on logarithmic axes, times log-normal noise of .30. Nothing runs.
    """
    records = np.linspace(GROWTH_RECORDS[0], GROWTH_RECORDS[-1], turns)
    curve = np.exp(np.interp(np.log(records), np.log(GROWTH_RECORDS), np.log(GROWTH_US[method])))
    draw = np.random.default_rng(seed)
    counts = np.clip(draw.poisson(8.0, turns), 3, 20)
    steps = np.array(
        [(us * np.exp(draw.normal(0.0, 0.30, count))).sum() for us, count in zip(curve, counts, strict=True)]
    )
    return f"{steps.sum() / 1e6:.4g} s, {(steps > 200e3).mean():.1%} of turns over 200 ms"


def _serial_share(speedup: float, threads: int = 8) -> float:
    """Amdahl's share of the work that does not get faster with threads."""
    return (1.0 / speedup - 1.0 / threads) / (1.0 - 1.0 / threads)


_AGENTIR, _FIVE, _LIGHT = "AgentIR", "Five Retrievers", "Recursive Light"
_FUSION, _COMPUTE = "Lexical-Dense Fusion", "Test-Time Compute"
_ENCODER = "MiniLM where the paper has another encoder, unless --encoder names it"
_WHOLE = partial(Evaluated, LOCOMO, "agentir", whole=True)
_NO_DATA = "the data is not here: "

# Sources: A040, A054, A085, A086, A088, A091, A095, A108, A111 to A114, A116, A120, A123, A127, B002, B006, C012, X24,
# D011, D012, E020 to E025, T019, X37 to X39.
HEADLINES: tuple[Headline, ...] = (
    *(
        Headline(
            _AGENTIR, "Table 17", f"LoCoMo by session, BM25, {metric}", value, Evaluated(LOCOMO, "agentir", metric)
        )
        for metric, value in (("hit@1", ".625"), ("hit@5", ".875"), ("hit@10", ".945"), ("mrr", ".735"))
    ),
    Headline(_AGENTIR, "Table 17", "LoCoMo, dense, hit@5", ".632", _WHOLE("hit@5", "dense"), _ENCODER),
    Headline(_AGENTIR, "Table 17", "LoCoMo, RRF, hit@5", ".797", _WHOLE("hit@5", "rrf"), _ENCODER),
    Headline(
        _AGENTIR,
        "Table 17",
        "LoCoMo, agent_rrf, hit@5",
        ".786",
        _WHOLE("hit@5", "agent_rrf"),
        f"{_ENCODER}; and the paper's bonus is for types that LoCoMo lacks, here every untyped question gets it",
    ),
    Headline(_AGENTIR, "Table 24", "LoCoMo, skipped at .10", ".679", _WHOLE("skip", "cascade"), "BM25 alone decides"),
    Headline(
        _AGENTIR,
        "Table 4",
        "SciFact, BM25, nDCG@10",
        ".6828",
        Evaluated(SCIFACT, "agentir", "ndcg@10"),
        "the paper's tokenizer is told in words alone",
    ),
    Headline(
        _AGENTIR,
        "Table 4",
        "eight other BEIR sets",
        ".1566 to .7886",
        f"{_NO_DATA}fanrank eval beir PATH --preset agentir",
    ),
    Headline(
        _AGENTIR,
        "Table 5",
        "times as fast as Pyserini, PISA",
        "10, 10.9",
        "make fanout, beside bm25s, tantivy and PISA: README.md",
        "other cores, and texts come in; Pyserini needs a Java of its own",
    ),
    Headline(
        _AGENTIR,
        "Table 2",
        "slower by 1,234 times the records, time windows",
        "3.6",
        "make growth: docs/figures.md",
        "windows leave out records that are asked for: the page has how many, and from which size they are faster",
    ),
    *(
        Headline(
            _AGENTIR, "Table 3", f"a session of 800 turns, {method}", value, partial(simulated_session, method), why
        )
        for method, value, why in (
            ("sequential", "459.2 s, 75.5%", "the printed protocol with draws of another generator; nothing is run"),
            ("SIMD", "87.8 s, 13.9%", "the same"),
            ("MaxScore", "84.0 s, 12.5%", "the same"),
            ("temporal", "0.43 s, 0.0%", "the same; make session runs a real one"),
        )
    ),
    Headline(
        _AGENTIR,
        "Tables 1, 4",
        "a GPU over a CPU",
        "1.8 to 39 times",
        "declined: no row of a GPU is recorded; bench/PENDING_GPU.md",
    ),
    Headline(_AGENTIR, "§6", "dollars a query of .40 ms", "5.6e-9", lambda: f"{0.4 / 3.6e6 * 0.05:.2g}"),
    Headline(
        _AGENTIR,
        "Table 25",
        "tenants at 0, 63, 89 % skipped",
        "154, 416, 1,399",
        lambda: ", ".join(f"{capacity(8, skip):,.0f}" for skip in (0.0, 0.63, 0.89)),
    ),
    Headline(_AGENTIR, "Table 20", "ms a query at 63.0 % skipped", "19.94", lambda: f"{amortised(0.63):.2f}"),
    Headline(
        _AGENTIR,
        "App. A.2",
        "serial shares, FiQA and SciDocs",
        ".31, .55",
        lambda: f"{_serial_share(2.5):.2f}, {_serial_share(1.9):.2f}",
        "from the printed speed-ups of 8 threads, 2.5 and 1.9",
    ),
    Headline(
        _AGENTIR,
        "Table 9",
        "LongMemEval, BM25, Recall@5",
        ".909",
        f"{_NO_DATA}fanrank eval longmemeval FILE --preset agentir",
    ),
    Headline(
        _AGENTIR,
        "Table 11",
        "accuracy of the cascade at .10",
        ".302",
        f"{_NO_DATA}--preset agentir-cascade --strategy cascade --answer-with URL; a model judges",
    ),
    Headline(
        _AGENTIR,
        "Table 10",
        "soft router over BM25",
        ".274, .246",
        f"{_NO_DATA}fanrank tune fits a router; router-by-type needs none",
    ),
    Headline(
        _AGENTIR,
        "Table 7",
        "SPLADE on SciFact, nDCG@10",
        ".7024",
        "the model is not here: --strategy sparse --term-encoder MODEL",
    ),
    Headline(
        _FIVE,
        "Cost",
        "p99 of BM25 with 10 million memories, ms",
        "12",
        "make growth goes to 5 million: docs/figures.md",
    ),
    Headline(
        _FIVE,
        "Cost",
        "the exact top 10 that HNSW misses",
        "5 %",
        "declined: 10 million vectors are not here; strategy dense-hnsw",
    ),
    Headline(
        _LIGHT,
        "Phase 1",
        "BM25 beside SQL's LIKE, P@5 over .70, R@5 over .50",
        "10 to 20 times as fast",
        Beside(SCIFACT),
        "the golden set of the source is not printed; SciFact has about one answer a question, so P@5 is at most .2",
    ),
    *(
        Headline(_FUSION, "Table 1", f"LoCoMo, BM25, {metric}", value, Evaluated(LOCOMO, "opsem", metric))
        for metric, value in (("hit@1", ".6395"), ("recall@3", ".7788"), ("recall@5", ".8325"), ("ndcg@5", ".7456"))
    ),
    Headline(
        _FUSION,
        "Table 4",
        "LoCoMo, fused, hit@1",
        ".691 to .752",
        Evaluated(LOCOMO, "opsem", "hit@1", "fused"),
        f"{_ENCODER}; alpha .5 here, fused-e5-large and fused-bge-base have the paper's",
    ),
    Headline(
        _FUSION,
        "§6",
        "LongMemEval-S, fused over BM25",
        "+.67 points",
        f"{_NO_DATA}fanrank eval longmemeval FILE --preset opsem",
    ),
    Headline(
        _COMPUTE,
        "Table 2",
        "SoftCentroid on ArguAna, e5-base",
        "+10.38 points",
        f"{_NO_DATA}fanrank eval beir PATH --strategy softcentroid",
    ),
    Headline(
        _COMPUTE,
        "Table 9",
        "DOCCHUNK, QUERYEXPAND, ANSWERTMPL",
        "+.05 to +3.44",
        "declined: a model writes or encodes texts anew; passages and dense-late come near the first",
    ),
    Headline(
        _COMPUTE,
        "§4",
        "programs that a search finds",
        "259",
        "declined: they need the paper's models; p1 to p164 are strategies",
    ),
)


def measure(folder: Path | None, encoder: str | Encoder | None, dense: bool) -> Iterator[tuple[Headline, str]]:
    """Every headline with the figure here, in words: computed, measured below `folder`, or why there is none.

    `dense` also measures what needs an encoder, which takes minutes. An evaluation runs once for all its metrics.
    """
    done: dict[Any, Mapping[str, Any]] = {}
    for headline in HEADLINES:
        here = headline.here
        if isinstance(here, str):
            yield headline, here
        elif callable(here):
            yield headline, here()
        elif folder is None or not (folder / here.path).exists():
            yield headline, here.command()
        elif isinstance(here, Beside):
            yield headline, here.measure(folder)
        elif here.strategy != "bm25" and not dense:
            yield headline, f"{here.command()} (measured with --dense)"
        else:
            key = here.path, here.preset, here.strategy
            if key not in done:
                done[key] = _evaluate(folder, here, encoder)
            yield headline, f"{done[key][here.metric]:.4f}"


def _evaluate(folder: Path, here: Evaluated, encoder: str | Encoder | None) -> Mapping[str, Any]:
    reading = {"passages": False} if here.whole else None
    model = None if here.strategy == "bm25" else encoder
    found = evaluate(
        PATHS[here.path], folder / here.path, preset=here.preset, strategy=here.strategy, encoder=model, reading=reading
    )
    return {**found["metrics"], "skip": found.get("skip", 0.0)}
