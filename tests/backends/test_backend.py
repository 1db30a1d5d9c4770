"""Which backend serves, and why the others do not."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

import pytest

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.backends.choose import BackendStatus


@pytest.fixture(autouse=True)
def no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backend.ENVIRONMENT_VARIABLE, raising=False)


def probe(name: str, usable: bool, reason: str, by_name: bool = False) -> Callable[[], BackendStatus]:
    return lambda: BackendStatus(name, usable, reason, by_name)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setitem(backend._PROBES, "cuda", probe("cuda", False, "no driver"))
    monkeypatch.setitem(backend._PROBES, "triton", probe("triton", False, "no torch"))
    monkeypatch.setitem(backend._PROBES, "cuda-host", probe("cuda-host", True, "a compiler", by_name=True))
    monkeypatch.setitem(backend._PROBES, "native", probe("native", False, "not installed"))


def test_statuses_name_every_backend_with_a_reason() -> None:
    found = backend.statuses()
    assert (
        tuple(status.name for status in found) == backend.BACKENDS == ("cuda", "triton", "cuda-host", "native", "numpy")
    )
    assert all(status.reason for status in found)
    assert found[-1].usable


@pytest.mark.usefixtures("no_gpu")
def test_the_first_that_can_serve_is_chosen_and_says_whom_it_passed_over() -> None:
    chosen = backend.choose()
    assert chosen.name == "numpy"
    assert chosen.reason.startswith(
        "not cuda: no driver; not triton: no torch; not cuda-host: only by name; not native: not installed; numpy "
    )
    assert fr.Engine().backend.name == "numpy"


@pytest.mark.usefixtures("no_gpu")
def test_chosen_by_argument() -> None:
    chosen = backend.choose("numpy")
    assert (chosen.name, chosen.reason) == ("numpy", "asked for by the caller")
    with pytest.raises(fr.errors.BackendUnavailableError) as caught:
        fr.Engine(backend="cuda")
    assert str(caught.value) == "backend 'cuda' (asked for by the caller) cannot serve: no driver"
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.usefixtures("no_gpu")
def test_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANRANK_BACKEND", "numpy")
    assert backend.choose().reason == "asked for by FANRANK_BACKEND"
    monkeypatch.setenv("FANRANK_BACKEND", "triton")
    with pytest.raises(fr.errors.BackendUnavailableError, match=r"'triton' \(asked for by FANRANK_BACKEND\).*no torch"):
        fr.Engine()
    # The argument goes before the environment, and an empty variable is none.
    assert fr.Engine(backend="numpy").backend.name == "numpy"
    monkeypatch.setenv("FANRANK_BACKEND", "")
    assert backend.choose().name == "numpy"


def test_unknown_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        fr.errors.BackendUnavailableError,
        match=r"no backend 'tpu' \(asked for by the caller\).*cuda, triton, cuda-host, na",
    ):
        fr.Engine(backend="tpu")
    monkeypatch.setenv("FANRANK_BACKEND", "NumPy")
    with pytest.raises(fr.errors.BackendUnavailableError, match=r"no backend 'NumPy' \(asked for by FANRANK_BACKEND\)"):
        fr.Engine()


@pytest.mark.usefixtures("no_gpu")
def test_nothing_can_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend._PROBES, "numpy", probe("numpy", False, "no luck"))
    with pytest.raises(fr.errors.BackendUnavailableError) as caught:
        backend.choose()
    assert str(caught.value) == (
        "no backend can serve: not cuda: no driver; not triton: no torch; not cuda-host: only by name; "
        "not native: not installed; not numpy: no luck"
    )


@pytest.mark.parametrize(
    ("triton", "numpy", "usable"), [("3.6.0", "2.5.5", False), ("3.6.0", "2.3.5", True), ("3.7.0", "2.5.5", True)]
)
def test_an_interpreter_that_does_not_run_with_numpy_is_refused(
    triton: str, numpy: str, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("torch", "2.13.0"), ("triton", triton)):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(__version__=version))
    monkeypatch.setattr(backend.np, "__version__", numpy)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    status = backend._triton_status()
    assert status.usable == usable
    assert usable or "triton 3.6.0 does not run with numpy 2.5.5; install triton 3.7 or newer" in status.reason


def test_a_slow_backend_serves_only_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend._PROBES, "cuda", probe("cuda", False, "no driver"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert backend.choose().name in backend.CPU
    with pytest.raises(
        fr.errors.BackendUnavailableError, match=r"cannot serve from cuda: no backend can serve: .*only by name"
    ):
        fr.Engine().to("cuda")


def test_a_device_chosen_unasked_shares_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend._PROBES, "cuda", probe("cuda", True, "a device"))
    monkeypatch.setattr(backend, "_backend", lambda name, reason, *_: backend.Backend(name, reason, lambda *_: None))  # type: ignore[arg-type,return-value]
    unasked, asked, moved = backend.choose(), backend.choose("cuda"), backend.choose(among=backend.DEVICES)
    assert (unasked.name, asked.name, moved.name) == ("cuda", "cuda", "cuda")
    assert unasked.cpu.name in backend.CPU
    assert (asked.cpu, asked.crossover, moved.cpu, moved.crossover) == (None, None, None, None)
