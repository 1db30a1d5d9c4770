"""A planner's fan-out beside the peers: the first table of the report and of the README."""

from collections.abc import Callable, Hashable, Sequence

from ..harness.cases import CORPORA
from ..harness.systems import FAN_OUT_BASELINES, SYSTEMS
from .format import Fields, details, geometric_mean, number, order_names, score, sentence, table, tabulate
from .rows import Recorded, choose_in_each, choose_rows, machine, no_row, stamp

OWN = ("fanrank", "fanrank-numpy")
SMALL = 20
"""The most queries of a fan-out. Geometric means are over calls of at most as many."""


def newest(recorded: Recorded) -> list[Fields]:
    """The rows of the newest complete run of every corpus, in the declared order of corpora."""
    rows = choose_in_each(recorded.of("fanout"), "case", _place)
    cases = order_names((row["case"] for row in rows), CORPORA)
    return sorted(rows, key=lambda row: cases.index(row["case"]))


def _place(row: Fields) -> Hashable:
    return row["system"], row["process"], size(row)


def size(row: Fields) -> str:
    """The queries of a row's calls, in words."""
    return f"all {row['batch']:,}" if row["whole"] else str(row["batch"])


def _warm(rows: Sequence[Fields]) -> list[Fields]:
    return [row for row in rows if row["process"] == "warm" and row.get("ms")]


def _systems(rows: Sequence[Fields]) -> list[str]:
    return order_names((row["system"] for row in rows), SYSTEMS)


def ratios(rows: Sequence[Fields], system: str, baseline: str) -> dict[tuple[str, str], float]:
    """A system's median time over the baseline's, for every corpus and size of calls of one run (under 1: faster)."""
    at = {(row["case"], size(row), row["run"], row["system"]): row["ms"] for row in _warm(rows)}
    return {
        (case, batch): ms / at[case, batch, run, baseline]
        for (case, batch, run, name), ms in at.items()
        if name == system and (case, batch, run, baseline) in at
    }


def means(rows: Sequence[Fields]) -> str:
    """Geometric means of the ratios at fan-outs, in words; empty without ratios."""
    small = [row for row in rows if row["batch"] <= SMALL and not row["whole"]]
    parts = []
    for system in OWN:
        shown = []
        for baseline in FAN_OUT_BASELINES:
            found = ratios(small, system, baseline).values()
            if found:
                shown.append(f"{geometric_mean(found):.2f} of {baseline} ({len(found)} cells)")
        if shown:
            parts.append(f"{system} takes {', '.join(shown)}")
    return "; ".join(parts)


def times(rows: Sequence[Fields]) -> str:
    """Median milliseconds a call, with the 99th percentile and the ratio of fanrank's systems to the first baseline."""
    warm = _warm(rows)
    systems = _systems(warm)
    at = {(row["case"], size(row), row["system"]): row for row in warm}
    to_base = {system: ratios(warm, system, FAN_OUT_BASELINES[0]) for system in OWN}
    body = []
    for case in order_names((row["case"] for row in warm), CORPORA):
        own = [row for row in warm if row["case"] == case]
        for batch in dict.fromkeys(size(row) for row in own):
            cells = []
            for system in systems:
                row = at.get((case, batch, system))
                if row is None:
                    cells.append("")
                    continue
                ratio = to_base.get(system, {}).get((case, batch))
                mark = " !" if row.get("verified") is False else ""
                cells.append(number(row["ms"]) + (f" (**{ratio:.2f}**)" if ratio else "") + mark)
            body.append([f"{case}, {own[0]['documents']:,}", batch, *cells])
    return table(["corpus, documents", "queries a call", *systems], body)


EVERY_ROW = "Every row: 99th percentiles, spread, processor time, overlap with float64 BM25"
SPREAD = {
    **{"corpus": "case", "queries a call": size, "system": "system", "mode": "mode", "median ms": "ms"},
    "p99 ms": "p99_ms",
    "medians of rounds": lambda row: f"{number(min(row['round_ms']))} to {number(max(row['round_ms']))}",
    **{"CPU ms": "cpu_ms", "calls": "calls", "overlap": lambda row: score(row.get("overlap"))},
}


def _step(step: str) -> Callable[[Fields], str]:
    return lambda row: f"{number(row[f'{step}_ms'][0])} ({number(row[f'{step}_ms'][1])})"


STEPS = {"import": "import", "open": "open", "first fan-out of 20": "first", "second": "second"}
COLD = {"corpus": "case", "system": "system", **{head: _step(step) for head, step in STEPS.items()}}


def cold(rows: Sequence[Fields]) -> str:
    """Fresh processes: milliseconds of the wall (and of the processor) of each step; empty without rows."""
    shown = [row for row in rows if row["process"] == "cold" and not row.get("error")]
    head = "Fresh processes, milliseconds of the wall (of the processor):"
    return f"{head}\n\n{tabulate(shown, COLD)}" if shown else ""


def instructions(recorded: Recorded) -> str:
    """Counted instructions of a call by phase, of the newest run under each set of versions; empty without rows."""
    rows = recorded.of("instructions")
    parts = []
    for under in dict.fromkeys(repr(row["versions"]) for row in rows):
        own = choose_rows([row for row in rows if repr(row["versions"]) == under], lambda row: None)
        at = {(row["batch"], row["phase"]): row["instructions"] for row in own}
        phases = list(dict.fromkeys(row["phase"] for row in own))
        body = [
            [str(batch), *(f"{at[batch, phase]:,}" if (batch, phase) in at else "" for phase in phases)]
            for batch in dict.fromkeys(row["batch"] for row in own)
        ]
        told = ", ".join(f"{name} {value}" for name, value in own[0]["versions"].items())
        parts.append(
            f"Instructions of a call of `{own[0]['backend']}` over 5,000 records, counted by callgrind ({stamp(own)}; "
            f"{told}); the whole is with the interpreter:\n\n{table(['queries a call', *phases], body)}"
        )
    return "\n\n".join(parts)


def fanout(recorded: Recorded) -> list[str]:
    """The section on fan-outs."""
    rows = newest(recorded)
    counted = instructions(recorded)
    if not _warm(rows):
        return [no_row("fanout"), *([counted] if counted else [])]
    parts = [
        f"{sentence(stamp(rows))}; {machine(rows)}. Texts in, ids and scores out, k 10, one thread: median "
        f"milliseconds a call (ratio to {FAN_OUT_BASELINES[0]}; under 1 is faster).",
        times(rows),
        f"Geometric means over calls of at most {SMALL} queries: {means(rows) or 'none'}.",
        cold(rows),
        details(
            EVERY_ROW,
            tabulate(_warm(rows), SPREAD),
        ),
        counted,
    ]
    return [part for part in parts if part]


def block(recorded: Recorded) -> str:
    """The README's block: fan-outs of at most `SMALL` queries beside the baseline and the fastest peer."""
    rows = [row for row in newest(recorded) if row["batch"] <= SMALL and not row["whole"]]
    warm = _warm(rows)
    if not warm:
        return no_row("fanout")
    at = {(row["case"], row["batch"], row["system"]): row["ms"] for row in warm}
    peers = [system for system in _systems(warm) if system not in OWN]
    batches = sorted({row["batch"] for row in warm})
    body = []
    for case in order_names((row["case"] for row in warm), CORPORA):
        cells = []
        for batch in batches:
            own, base = (at.get((case, batch, name)) for name in (OWN[0], FAN_OUT_BASELINES[0]))
            others = {at[case, batch, peer]: peer for peer in peers if (case, batch, peer) in at}
            if not own or not base:
                cells.append("")
                continue
            best = min(others)
            cells.append(f"{number(own)} (**{own / base:.2f}**; {own / best:.2f} of {others[best]})")
        documents = next(row["documents"] for row in warm if row["case"] == case)
        body.append([f"{case}, {documents:,}", *cells])
    head = ["corpus, documents", *("1 query" if batch == 1 else f"{batch} queries" for batch in batches)]
    return (
        f"Milliseconds a call of fanrank at one thread, median (in bold: the share of {FAN_OUT_BASELINES[0]}'s time; "
        f"then that of the fastest peer's; {stamp(rows)}; {machine(rows)}):\n\n{table(head, body)}\n\n"
        f"Geometric means over calls of at most {SMALL} queries (less is faster): {means(rows) or 'none'}."
    )
