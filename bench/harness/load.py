"""Threads that write and threads that search while they are timed."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import fanrank as fr

from .methods import K
from .rows import round_digits

Figures = dict[str, Any]


class Asking:
    """A thread that sends fan-outs while the block lasts: `pace` a second; None: as fast as it can; 0: never.

    It sends at least one, however late the thread starts to run.
    """

    def __init__(self, engine: fr.Engine, fan_outs: Sequence[Sequence[fr.Query]], pace: float | None) -> None:
        self.ms: list[float] = []
        self.seconds = 0.0
        self._engine, self._fan_outs, self._pace = engine, fan_outs, pace
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="asking")

    def __enter__(self) -> "Asking":
        if self._pace != 0:
            # The first search after a bulk load derives arrays. It belongs to neither phase.
            self._engine.search(self._fan_outs[0], K)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._pace != 0:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        began = due = time.perf_counter()
        number = 0
        try:
            while not number or not self._stop.is_set():
                begin = time.perf_counter()
                _ = self._engine.search(self._fan_outs[number % len(self._fan_outs)], K).ids
                self.ms.append(1e3 * (time.perf_counter() - begin))
                number += 1
                if self._pace:
                    due += 1 / self._pace
                    self._stop.wait(max(0.0, due - time.perf_counter()))
        except BaseException as error:  # raised again at the end of the block
            self._error = error
        self.seconds = time.perf_counter() - began

    def figures(self) -> Figures:
        if not self.ms:
            return {}
        return {**percentiles(self.ms), "fan_outs_per_s": round_digits(len(self.ms) / self.seconds)}


def write(
    engine: fr.Engine,
    batches: Iterator[list[fr.Record]],
    writers: int,
    seconds: float,
    rate: float | None = None,
) -> Figures:
    """Append batches until the batches or the seconds run out: `rate` records a second and writer; None: at full speed.

    At least one batch is written, however short the time.
    """
    taking, began = threading.Lock(), threading.Barrier(writers + 1)
    ms: list[float] = []
    sizes: list[int] = []
    errors: list[BaseException] = []
    pause = threading.Event()

    def run() -> None:
        began.wait()
        due = start = time.perf_counter()
        try:
            while not ms or time.perf_counter() - start < seconds:
                with taking:
                    batch = next(batches, None)
                if batch is None:
                    return
                begin = time.perf_counter()
                engine.add(batch)
                ms.append(1e3 * (time.perf_counter() - begin))
                sizes.append(len(batch))
                if rate:
                    due += len(batch) / rate
                    pause.wait(max(0.0, due - time.perf_counter()))
        except BaseException as error:  # raised again by the waiting thread
            errors.append(error)

    threads = [threading.Thread(target=run, name=f"writer-{number}") for number in range(writers)]
    for thread in threads:
        thread.start()
    began.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - start
    if errors:
        raise errors[0]
    expect(bool(ms), "there was no batch to write")
    return {
        "records": sum(sizes),
        "records_per_s": round(sum(sizes) / spent),
        "adds_per_s": round_digits(len(ms) / spent),
        "add_p50_ms": round_digits(float(np.percentile(ms, 50))),
        "add_p99_ms": round_digits(float(np.percentile(ms, 99))),
        "add_max_ms": round_digits(max(ms)),
    }


def percentiles(ms: Sequence[float]) -> Figures:
    p50, p99 = np.percentile(np.asarray(ms), [50, 99]).tolist()
    return {
        "fan_outs": len(ms),
        "fanout_p50_ms": round_digits(p50),
        "fanout_p99_ms": round_digits(p99),
        "fanout_max_ms": round_digits(max(ms)),
    }


def expect(held: bool, what: str) -> None:
    if not held:
        raise RuntimeError(what)
