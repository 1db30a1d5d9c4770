"""Options of a device reach its kernels, change no answer, and are refused by name where nothing has them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.backends.choose import BackendStatus
from fanrank.engine.plan.device_options import FAMILY, POSTING_BYTES, SELECT

torch = pytest.importorskip("torch", reason="torch is not installed")

RECORDS = [fr.Record(str(n), " ".join(f"w{n % m}" for m in (2, 3, 5, 7, 11, 13))) for n in range(300)]
QUERIES = ["w1 w4", "w0 w0 w2", "w6", "nothing", "w1 w2 w3 w4 w5 w6 w7"]


def engine_on(device: str, **options: Any) -> fr.Engine:
    status = next(status for status in backend.statuses() if status.name == device)
    if not status.usable:
        pytest.skip(status.reason)
    return fr.Engine.from_records(RECORDS, analyzer="minimal", backend="numpy").to(device, **options)


def answers(engine: fr.Engine, k: int) -> list[list[tuple[str, float]]]:
    """By the fan-out's path and by the general one."""
    return [
        [(hit.id, hit.score) for hit in row]
        for execution in ("auto", "exhaustive")
        for row in engine.search(QUERIES, k, execution=execution)
    ]


def kernels(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the kernels that are launched from now on."""
    launcher = engine.backend.device.verbs._launcher  # type: ignore[attr-defined]
    launch, names = launcher.launch, set()

    def noted(name: str, *how: Any) -> None:
        names.add(name)
        launch(name, *how)

    monkeypatch.setattr(launcher, "launch", noted)
    return names


@pytest.mark.parametrize(
    "options",
    [
        {"posting_bytes": 4, "tile_bits": 5},
        {"posting_bytes": 8, "tile_bits": 15, "select": "auto"},
        {"posting_bytes": 4, "tile_bits": 6, "select": "bitonic"},
    ],
    ids=str,
)
def test_options_reach_the_cuda_kernels(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answers(fr.Engine.from_records(RECORDS, analyzer="minimal", backend="numpy"), 20)
    engine = engine_on("cuda-host", **options)
    device = engine.backend.device
    assert device.residency.posting_bytes == options.get("posting_bytes", 8)
    assert device.verbs.tile_bits(False) == options.get("tile_bits", 14)
    assert device.verbs.tile_bits(True) == min(options.get("tile_bits", 13), 14)
    launched = kernels(engine, monkeypatch)
    assert answers(engine, 20) == expected
    method = "select_bitonic" if options.get("select") == "bitonic" else "select_warp"
    assert any(name.startswith(method) for name in launched)
    assert all(name.startswith(method) for name in launched if name.startswith("select_"))
    bits = options.get("posting_bytes", 8)
    assert (f"score_narrow_{bits}" in launched) == (bits < 8)


def test_tile_bits_reach_the_triton_kernels() -> None:
    bits = 5
    engine_on("triton")
    engine = fr.Engine.from_records(RECORDS[:40], analyzer="minimal", backend="numpy")
    expected = list(engine.search(QUERIES[:2], 3))
    engine.to("triton", tile_bits=bits, posting_bytes=8)
    assert engine.backend.device.verbs.tile_bits(False) == bits
    assert engine.backend.device.verbs.tile_bits(True) == max(5, bits - 1)
    assert list(engine.search(QUERIES[:2], 3)) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"posting_bytes": 5}, "posting_bytes must be one of 8, 4, not 5"),
        ({"posting_bytes": True}, "posting_bytes must be one of 8, 4, not True"),
        ({"posting_bytes": 4.0}, "posting_bytes must be one of 8, 4, not 4.0"),
        ({"tile_bits": "13"}, "tile_bits must be an integer, not '13'"),
        ({"tile_bits": True}, "tile_bits must be an integer, not True"),
        ({"select": "radix"}, "select must be one of auto, bitonic, not 'radix'"),
        ({"select": 3}, "select must be one of auto, bitonic, not 3"),
        ({"select": np.array(["bitonic", "auto"])}, "select must be one of auto, bitonic, not array"),
    ],
)
def test_values_that_no_device_takes(options: dict[str, Any], words: str) -> None:
    engine = fr.Engine(backend="numpy")
    before = engine.backend
    for device in ("cpu", "cuda", "triton", "cuda-host"):
        with pytest.raises(fr.errors.ParameterError, match=words):
            engine.to(device, **options)
    assert engine.backend is before


def test_options_that_a_family_does_not_have() -> None:
    engine = fr.Engine(backend="numpy")
    for name, value in (("posting_bytes", 8), ("tile_bits", 9), ("select", "auto")):
        with pytest.raises(fr.errors.ParameterError, match=rf"has no option {name}; such options are of a device"):
            engine.to("cpu", **{name: value})  # type: ignore[arg-type]
    with pytest.raises(fr.errors.ParameterError, match=r"device .tpu.; .* There are: cpu, cuda, triton, cuda-host"):
        engine.to("tpu", tile_bits=9)
    with pytest.raises(fr.errors.ParameterError, match="unknown device array"):
        engine.to(np.array(["cpu", "cuda"]))  # type: ignore[arg-type]


def test_values_that_a_family_does_not_take() -> None:
    engine = engine_on("cuda-host")
    before = engine.backend
    for bits in (4, 16):
        with pytest.raises(fr.errors.ParameterError, match=rf"tile_bits must lie in \[5, 15\], not {bits}"):
            engine.to("cuda-host", tile_bits=bits)
    assert engine.backend is before
    status = next(status for status in backend.statuses() if status.name == "triton")
    if not status.usable:
        pytest.skip(status.reason)
    for options, words in (
        ({"select": "bitonic"}, "backend 'triton' has no option select; it has: posting_bytes, tile_bits"),
        ({"posting_bytes": 4}, "triton reads postings of 8 bytes, not 4"),
        ({"tile_bits": 14}, r"tile_bits must lie in \[5, 13\], not 14"),
    ):
        with pytest.raises(fr.errors.ParameterError, match=words):
            engine.to("triton", **options)  # type: ignore[arg-type]
    assert engine.backend is before


def test_more_kinds_of_postings_than_the_bytes_hold_are_named() -> None:
    many = [fr.Record(str(n), " ".join(["w"] * (1 + n % 60) + ["x"] * (n % 97))) for n in range(6000)]
    engine = fr.Engine.from_records(many, analyzer="minimal", backend="numpy")
    expected = engine.search(["w x"], 5)
    status = next(status for status in backend.statuses() if status.name == "cuda-host")
    if not status.usable:
        pytest.skip(status.reason)
    with pytest.raises(fr.errors.ParameterError, match="4 bytes a posting hold 4,096; use 8"):
        engine.to("cuda-host", posting_bytes=4).search(["w x"], 5)
    assert engine.to("cuda-host").search(["w x"], 5)[0] == expected[0]


def test_the_values_are_those_of_the_kernels() -> None:
    """They stand in two places, as an engine without a device must not import torch to check them."""
    from fanrank.kernels.cuda.verbs import SELECT_METHODS
    from fanrank.kernels.families import OPTIONS
    from fanrank.kernels.work import POSTING_BYTES as OF_KERNELS

    assert SELECT == SELECT_METHODS
    assert POSTING_BYTES == OF_KERNELS
    assert set(OPTIONS) == set(backend.BACKENDS) - set(backend.CPU)
    assert {name for names in OPTIONS.values() for name in names} == set(FAMILY.__dataclass_fields__)


class Cards:
    """A machine with GPUs, as far as a backend is chosen and nothing is launched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from fanrank.kernels.cuda import launcher
        from fanrank.kernels.cuda_host.launcher import LIMITS

        self.current = 0
        self.launchers = 0
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: object())
        monkeypatch.setattr(launcher, "CupyLauncher", lambda *_: SimpleNamespace(limits=LIMITS))
        monkeypatch.setitem(backend._PROBES, "cuda", lambda: BackendStatus("cuda", True, "a stand-in"))


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    return Cards(monkeypatch)


def test_vectors_are_served_from_the_device_of_the_searches(cards: Cards) -> None:
    """Whatever device is current when they are first asked for, and whoever asked on another device before."""
    first = fr.Engine(backend="numpy").to("cuda")
    assert first.backend.dense().gpu == 0
    cards.current = 1
    second, third = (fr.Engine(backend="numpy").to("cuda", max_device_bytes=limit) for limit in (None, 1 << 20))
    unasked = fr.Engine(backend="cuda")
    cards.current = 0
    for engine, gpu in ((first, 0), (second, 1), (third, 1), (unasked, 1)):
        dense = engine.backend.dense()
        assert engine.backend.gpu == gpu
        assert dense.gpu == gpu
        assert dense.device == torch.device("cuda", gpu)  # type: ignore[attr-defined]
        assert engine.backend.dense() is dense
    assert third.backend.dense().account.limit == 1 << 20  # type: ignore[attr-defined]
    assert first.to("cpu").backend.gpu is None
    assert first.backend.dense().gpu is None


def test_cuda_gets_the_options(cards: Cards) -> None:
    engine = fr.Engine(backend="numpy").to("cuda", posting_bytes=4, tile_bits=13, select="bitonic")
    device = engine.backend.device
    assert (device.residency.posting_bytes, device.verbs.tile_bits(False)) == (4, 13)
    assert device.verbs._select_method == "bitonic"  # type: ignore[attr-defined]
