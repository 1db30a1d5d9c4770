"""CUDA kernels: their arguments and sources, and launches through CuPy without a device."""

from __future__ import annotations

import re
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from ctypes import sizeof
from typing import Any
from unittest.mock import MagicMock

import pytest

torch = pytest.importorskip("torch")

from fanrank.engine.errors import BackendUnavailableError, ParameterError  # noqa: E402
from fanrank.kernels.cuda.arguments import HEADER, LAYOUTS, read_layouts  # noqa: E402
from fanrank.kernels.cuda.launcher import FOLDER, OPERATIONS, SOURCES, CupyLauncher, DeviceLimits, source_of  # noqa: E402
from fanrank.kernels.work import DESCRIPTOR_BYTES, ENTRY_BYTES, SEGMENT_FIELDS  # noqa: E402

ATTRIBUTES = {
    "MultiProcessorCount": 132,
    "MaxSharedMemoryPerMultiprocessor": 228 << 10,
    "MaxSharedMemoryPerBlockOptin": 227 << 10,
}


class DriverError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class FakeCupy(types.ModuleType):
    """As much of CuPy as `CupyLauncher` uses, without a device. `raises` is raised at `where`."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.where, self.raises = "", Exception()
        self.launched: list[tuple[str, int]] = []
        self.streams: list[int] = []
        """Of each launch, the stream that was current."""
        self.stream = 0
        self.kernels: dict[tuple[int, str], FakeKernel] = {}
        """By device and name, as the driver keeps what was granted."""
        errors = {name: type(name, (Exception,), {}) for name in ("OutOfMemoryError", "CompileException")}
        self.cuda = types.SimpleNamespace(
            Device=lambda number: MagicMock(attributes=ATTRIBUTES),
            ExternalStream=lambda pointer, device: FakeStream(self, pointer),
            memory=types.SimpleNamespace(OutOfMemoryError=errors["OutOfMemoryError"]),
            compiler=types.SimpleNamespace(CompileException=errors["CompileException"]),
            driver=types.SimpleNamespace(CUDADriverError=DriverError),
            runtime=types.SimpleNamespace(CUDARuntimeError=type("CUDARuntimeError", (DriverError,), {})),
        )

    def fail_at(self, where: str) -> None:
        if self.where == where:
            raise self.raises

    def RawModule(self, **options: Any) -> FakeCupy:
        self.fail_at("compile")
        return self

    def get_function(self, name: str) -> FakeKernel:
        self.fail_at("load")
        return self.kernels.setdefault((torch.cuda.current_device(), name), FakeKernel(self, name))


class FakeStream:
    """Kernels that are launched within it run on the stream of this number."""

    def __init__(self, cupy: FakeCupy, number: int) -> None:
        self._cupy, self._number, self._before = cupy, number, 0

    def __enter__(self) -> FakeStream:
        self._before, self._cupy.stream = self._cupy.stream, self._number
        return self

    def __exit__(self, *error: object) -> None:
        self._cupy.stream = self._before


class FakeKernel:
    def __init__(self, cupy: FakeCupy, name: str) -> None:
        self._cupy, self._name = cupy, name
        self.preferred_shared_memory_carveout = -1
        self._most = 0

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return self._most

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, value: int) -> None:
        self._cupy.fail_at("attribute")
        self._most = value

    def __call__(self, *arguments: Any, shared_mem: int) -> None:
        self._cupy.fail_at("launch")
        assert shared_mem <= max(48 << 10, self._most), "more shared memory than was asked for"
        self._cupy.launched.append((self._name, shared_mem))
        self._cupy.streams.append(self._cupy.stream)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=700 + device))
    monkeypatch.setattr(CupyLauncher, "_loaded", {})
    monkeypatch.setattr(CupyLauncher, "_shared_bytes", {})
    return fake


def launched(shared_bytes: int) -> None:
    CupyLauncher().launch("score_narrow", (1, 1, 1), (512, 1, 1), shared_bytes, ())


def test_the_launcher_asks_for_shared_memory(cupy: FakeCupy) -> None:
    own = CupyLauncher()
    assert own.limits == DeviceLimits(132, 228 << 10, 227 << 10)
    for shared_bytes in (0, 67584, 67584, 1024):
        own.launch("score_narrow", (1, 1, 1), (512, 1, 1), shared_bytes, ())
    assert cupy.launched == [("score_narrow", shared_bytes) for shared_bytes in (0, 67584, 67584, 1024)]
    (kernel,) = cupy.kernels.values()
    assert (kernel.max_dynamic_shared_size_bytes, kernel.preferred_shared_memory_carveout) == (67584, 100)


def test_searches_that_meet_a_kernel_together_compile_it_once(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one would launch a function whose shared memory another one raised."""
    met, compiled = threading.Barrier(2), []

    def compile_slowly(**options: Any) -> FakeCupy:
        compiled.append(threading.get_ident())
        threading.Event().wait(0.1)
        cupy.kernels.clear()  # Each compilation makes a function of its own.
        return cupy

    def launch(own: CupyLauncher) -> None:
        met.wait(300)
        own.launch("score_narrow", (1, 1, 1), (512, 1, 1), 67584, ())

    monkeypatch.setattr(cupy, "RawModule", compile_slowly)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(launch, [CupyLauncher(), CupyLauncher()]))
    assert (len(compiled), len(cupy.launched)) == (1, 2)


def test_a_kernel_runs_on_torchs_current_stream_of_its_device(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    launched(0)
    assert cupy.streams == [700, 701]


def test_each_device_is_asked_for_its_own_shared_memory(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was granted on the first device says nothing of a kernel that the second one loads."""
    launched(67584)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    launched(67584)
    assert len(cupy.launched) == 2


@pytest.mark.parametrize(
    ("where", "error", "named", "message"),
    [
        ("compile", "CompileException", BackendUnavailableError, "NVRTC does not compile"),
        ("compile", "OutOfMemoryError", torch.OutOfMemoryError, "cannot be loaded"),
        ("load", 2, torch.OutOfMemoryError, "cannot be loaded"),
        ("load", 209, BackendUnavailableError, "status 209; update the driver"),
        ("attribute", 1, ParameterError, "67,584 bytes of shared memory a block: .* smaller tiles"),
        ("launch", 1, ParameterError, "score_narrow with 512 threads"),
        ("launch", 701, ParameterError, "smaller tiles"),
        ("launch", 2, torch.OutOfMemoryError, "score_narrow"),
        ("launch", "OutOfMemoryError", torch.OutOfMemoryError, "score_narrow"),
        # The device is lost; nothing that is tried instead would answer.
        ("launch", 700, DriverError, "status 700"),
    ],
)
def test_errors_of_the_driver_have_names(cupy: FakeCupy, where: str, error: Any, named: Any, message: str) -> None:
    kinds = [cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError]
    if isinstance(error, str):
        kinds = [getattr(cupy.cuda.memory, error, None) or getattr(cupy.cuda.compiler, error)]
    for kind in kinds:
        cupy.where, cupy.raises = where, kind(error)
        with pytest.raises(named, match=message):
            launched(67584)
        assert cupy.launched == []
    # Nothing of a launch that failed is kept.
    cupy.where = ""
    launched(67584)
    assert cupy.launched == [("score_narrow", 67584)]
    assert cupy.kernels[0, "score_narrow"].max_dynamic_shared_size_bytes == 67584


def test_every_structure_of_the_header_has_a_layout() -> None:
    assert sorted(LAYOUTS) == sorted(re.findall(r"^struct (\w+)", HEADER.read_text(), re.MULTILINE))
    assert LAYOUTS["SegmentRow"].fields == SEGMENT_FIELDS
    sizes = {"SegmentRow": 8 * len(SEGMENT_FIELDS), "Descriptor": DESCRIPTOR_BYTES, "Entry": ENTRY_BYTES}
    assert {name: sizeof(LAYOUTS[name].structure) for name in sizes} == sizes


def test_a_field_needs_a_known_type_and_a_comment() -> None:
    fields = "    i32 count;         // number\n    const i64* words;  // [S] int64\n    void* any;  // [P]\n"
    layout = read_layouts(f"struct Known {{\n{fields}}};\n")["Known"]
    assert [field[0] for field in layout.structure._fields_] == ["count", "words", "any"]
    assert layout.pointers == {"words": 8, "any": 0}
    for line in ("    i32 count;\n", "    i16 count;  // number\n", "    double* ;  // [S]\n"):
        with pytest.raises(ValueError, match="Wrong: not a field"):
            read_layouts(f"struct Wrong {{\n{line}}};\n")


def test_the_values_of_a_structure_are_checked() -> None:
    text = "struct Pair {\n    i32 count;         // number\n    const i64* words;  // [S] int64\n};\n"
    layout = read_layouts(text)["Pair"]
    words = torch.arange(4)
    assert layout.fill(count=3, words=words).words == words.data_ptr()
    assert layout.fill(count=3, words=None).words is None
    for message, values in [
        (r"Pair: these arguments are missing or unknown: \['words'\]", {"count": 3}),
        (r"missing or unknown: \['more'\]", {"count": 3, "words": None, "more": 1}),
        ("Pair.words must be a tensor or None", {"count": 3, "words": 7}),
        ("not contiguous", {"count": 3, "words": words[::2]}),
        ("elements of 8 bytes, got a tensor with elements of 4", {"count": 3, "words": words.int()}),
    ]:
        with pytest.raises(ParameterError, match=message):
            layout.fill(**values)  # type: ignore[arg-type]


def test_sources_are_compiled_with_their_headers_and_none_of_the_system() -> None:
    """NVRTC has no system headers."""
    for operation in OPERATIONS:
        text = source_of(operation)
        assert "#include" not in text
        assert text.count("constexpr i32 WARP = 32;") == 1
    for file in (*SOURCES, *FOLDER.glob("*.cuh")):
        assert not re.findall(r"#include <", file.read_text()), file.name
