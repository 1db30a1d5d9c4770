"""Engines on a device search of a test's own, and what their launches really were."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.kernels import search as device_search
from fanrank.kernels.work import SEGMENT_FIELDS, Verbs, Work, tiles_of

from . import borders
from .answers import answer

ON_A_GPU = [pytest.param(name, marks=pytest.mark.gpu, id=f"{name}-gpu") for name in backend.DEVICES]
FAST = ["cuda-host", *ON_A_GPU]
FAMILIES = ["cuda-host", pytest.param("triton", id="triton-interpreter"), *ON_A_GPU]

# Documents of a tile: 2 to this power.
TILE_BITS = 5
SIZE = SEGMENT_FIELDS.index("size")


class Launch(NamedTuple):
    """One call of `Verbs.score`."""

    segments: int
    """With documents."""
    tiles: int
    """Of the largest segment."""
    queries: int
    k: int
    """The largest of any query."""
    width: int
    tile_bits: int


class Launches:
    """The launches of a test, oldest first. A device that is no CPU is not read from, so it has none."""

    def __init__(self) -> None:
        self.made: list[Launch] = []

    def begin(self) -> None:
        """Forget those of the test before."""
        self.made = []

    def add(self, work: Work) -> None:
        """Note what this launch works on."""
        if work.query_k.device.type == "cpu":
            sizes = [size for size in work.segments[:, SIZE].tolist() if size]
            tiles = max((tiles_of(size, work.tile_bits) for size in sizes), default=0)
            k = int(work.query_k.max()) if len(work.query_k) else 0
            self.made.append(Launch(len(sizes), tiles, len(work.query_k), k, work.width, work.tile_bits))

    def most(self, field: str) -> int:
        """The largest value of a field of `Launch`."""
        return max((int(getattr(launch, field)) for launch in self.made), default=0)


launches = Launches()
"""Those of the test that runs; `tests/devices/conftest.py` begins them anew for each."""


class Watched:
    """A family of kernels whose launches are noted. All else is the family's."""

    def __init__(self, verbs: Verbs, tile_bits: int = TILE_BITS) -> None:
        self.plain = verbs
        self._tile_bits = tile_bits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def tile_bits(self, wide: bool) -> int:
        return self._tile_bits

    def score(self, work: Work, *rest: Any, **how: Any) -> None:
        launches.add(work)
        self.plain.score(work, *rest, **how)


_chosen: dict[str, device_search.DeviceSearch] = {}


def known(name: str) -> device_search.DeviceSearch:
    """The device search of the family, made once: compiling it takes seconds. Skips the test where none serves."""
    if name not in _chosen:
        status = next(status for status in backend.statuses() if status.name == name)
        if not status.usable:
            pytest.skip(status.reason)
        made = backend.choose(name).device
        assert made is not None
        _chosen[name] = made
    return _chosen[name]


def serve(
    engine: fr.Engine, name: str, *, texts: bool = False, tile_bits: int = TILE_BITS, **options: Any
) -> fr.Engine:
    """The engine on a fresh device search of the family, in tiles of ``2**tile_bits`` documents.

    `texts`: whether fan-outs go from their texts at once, as they do where nobody plans, or by way of plans.
    """
    for snapshot in engine.index.memory.snapshots.values():
        assert len(snapshot.segments) >= -(-snapshot.size // borders.value("MAX_SEGMENT_DOCUMENTS"))
    made = known(name)
    verbs: Any = Watched(made.verbs, tile_bits)
    fresh = device_search.DeviceSearch(verbs, made.residency.device, **options)
    engine.backend = backend.Backend(name, "a test", fresh, fresh, texts=fresh.search_texts if texts else None)
    return engine


def serve_numpy(engine: fr.Engine) -> fr.Engine:
    engine.backend = backend.choose("numpy")
    return engine


def device_of(engine: fr.Engine) -> device_search.DeviceSearch:
    assert engine.backend.device is not None
    return engine.backend.device


def interpreted(engine: fr.Engine) -> bool:
    """Whether Triton's interpreter serves: its programs take about 20 ms each, so tests ask it for less."""
    return engine.backend.name == "triton" and device_of(engine).residency.device.type == "cpu"


def paths(
    engine: fr.Engine, batch: list[fr.Query], k: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, list[list[tuple[int, int]]]]]:
    """The answers of every path that a batch can take."""
    yield "auto", answer(engine.search(batch, k))
    yield "exhaustive", answer(engine.search(batch, k, execution="exhaustive"))
    if interpreted(engine):
        return
    yield "auto again", answer(engine.search(batch, k))
    by_plans = engine.backend
    engine.backend = replace(by_plans, texts=device_of(engine).search_texts)
    yield "texts", answer(engine.search(batch, k))
    engine.backend = by_plans
    with monkeypatch.context() as patch:
        borders.shrink(patch, {"search.MAX_CANDIDATES": 40})
        yield "small launches", answer(engine.search(batch, k, execution="exhaustive"))
    yield "other neighbours", answer(engine.search(batch[::-1], k))[::-1]


def tensors_of(engine: fr.Engine, batch: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch as `Engine.search_tensors` takes it."""
    where = device_of(engine).residency.device
    terms, offsets = (torch.tensor(array, device=where) for array in engine.encode(batch)[:2])
    return terms, offsets


def tensor_answer(found: Any) -> list[list[tuple[int, int]]]:
    """(document, quanta) of each hit of a `TensorHits`, after checking its padding."""
    rows = []
    for scores, documents, count in zip(found.scores.cpu(), found.documents.cpu(), found.counts.tolist(), strict=True):
        assert (documents[count:] == -1).all()
        assert (scores[count:] == -torch.inf).all()
        quanta = (scores[:count] * (1 << 18)).to(torch.int64)
        rows.append(list(zip(documents[:count].tolist(), quanta.tolist(), strict=True)))
    return rows


def assert_same_bits(found: fr.Hits, expected: fr.Hits) -> None:
    """Whichever backends gave them."""
    for part in ("scores", "documents", "counts"):
        own, other = getattr(found, part), getattr(expected, part)
        assert (own.dtype, own.shape, own.tobytes()) == (other.dtype, other.shape, other.tobytes()), part
