"""The command ``python -m bench``: reads its options and runs the harness beside the peers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, get_args

from .harness import cases, systems
from .harness.code import code_of
from .harness.environments import PeerError, python_of
from .harness.machine import ceiling, commit, machine, now
from .harness.measure import run_case
from .harness.options import names, numbers, progress
from .harness.paths import RESULTS
from .harness.rows import Row, append
from .report.systems import markdown


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure fanrank beside other engines, interleaved in one run."
    )
    parser.add_argument("--quick", action="store_true", help="small corpora, 2 repetitions, installed peers only")
    parser.add_argument("--cases", type=names, help=f"of {','.join(cases.CORPORA)}")
    parser.add_argument("--peers", type=names, help=f"of {','.join(systems.PEERS)}, or all (default: the light ones)")
    parser.add_argument("--systems", type=names, help=f"of {','.join(systems.SYSTEMS)} (default: all of the peers')")
    parser.add_argument("--phases", type=names, default=get_args(cases.Phase), help="kernel,end_to_end")
    parser.add_argument("--reps", type=int, help="repetitions (default 7, quick 2)")
    parser.add_argument("--k", type=numbers, default=cases.KS, help="default 10,100")
    parser.add_argument("--threads", type=numbers, default=cases.THREADS, help="default 1,2")
    parser.add_argument("--budget", type=float, default=5.0, help="most seconds of one measurement (default 5)")
    parser.add_argument("--no-install", action="store_true", help="measure only what is installed already")
    parser.add_argument("--name", help="rows go to bench/results/NAME.jsonl (default cpu, quick: quick)")
    parser.add_argument("--json", action="store_true", help="print the rows instead of the tables")
    return parser


def _check_known(parser: argparse.ArgumentParser, what: str, given: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        parser.error(f"no {what} {', '.join(unknown)}; there are: {', '.join(known)}")


def _is_installed(peer: str) -> bool:
    try:
        python_of(systems.PEERS[peer], install=False)
    except PeerError:
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, append the rows, print them. Returns 0 if every system verified and none failed, else 1."""
    parser = _parser()
    options = parser.parse_args(arguments)
    chosen = options.cases or (cases.QUICK if options.quick else cases.FULL)
    peers = options.peers or tuple(name for name, peer in systems.PEERS.items() if peer.default)
    if "all" in peers:
        peers = tuple(systems.PEERS)
    _check_known(parser, "case", chosen, tuple(cases.CORPORA))
    _check_known(parser, "peer", peers, tuple(systems.PEERS))
    _check_known(parser, "phase", options.phases, get_args(cases.Phase))
    _check_known(parser, "system", options.systems or (), tuple(systems.SYSTEMS))
    if options.quick:
        peers = tuple(name for name in peers if _is_installed(name))
    measured = [item for item in systems.systems_of(peers) if not options.systems or item.name in options.systems]
    reps = options.reps or (2 if options.quick else 7)
    if reps < 1:
        parser.error("--reps must be 1 or more")

    say = progress()
    name = options.name or ("quick" if options.quick else "cpu")
    say("measures the machine's ceiling")
    date = now()
    shared: dict[str, Any] = {
        "bench": name,
        "run": date,
        "machine": machine(),
        "ceiling": ceiling(),
        "commit": commit(),
        "code": code_of("cpu"),
        "date": date,
    }
    cells = cases.grid(options.k, options.threads, options.phases)
    install = not (options.no_install or options.quick)
    rows: list[Row] = []
    for case in chosen:
        found = run_case(cases.CORPORA[case], measured, cells, reps, options.budget, install, shared, say)
        # Written case by case, so that an interrupted run keeps its rows.
        append(RESULTS / f"{name}.jsonl", found)
        rows += found
    say("")
    print("\n".join(json.dumps(asdict(row)) for row in rows) if options.json else markdown(rows))
    return int(any(row.error or row.verified is False for row in rows))
