"""The little of NVRTC that compiling takes: the log of machine code, or PTX."""

import ctypes
import functools
import importlib.util
import shutil
from pathlib import Path

from fanrank.kernels.cuda.launcher import OPTIONS

from .parse import Module, parse

CUPY_OPTIONS = ("-ftz=true",)
"""What CuPy adds to the options of its caller, beside the architecture."""


class Nvrtc:
    """One NVRTC library."""

    def __init__(self, path: Path) -> None:
        # NVRTC 13.0 does not look for its own builtins beside itself.
        for builtins in path.parent.glob("libnvrtc-builtins.so*"):
            ctypes.CDLL(str(builtins))
        self._library = ctypes.CDLL(str(path))

    def compile(self, source: Path, architecture: str, cubin: Path | None = None) -> str:
        """The assembler's log for ``sm_90`` ...; the machine code goes to `cubin`.

        Raises AssertionError with the log if the source does not compile.
        """
        program, log = self._compiled(source, f"--gpu-architecture={architecture}", "--ptxas-options=-v")
        if cubin is not None:
            cubin.write_bytes(self._output(program, "CUBIN"))
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        return log

    def ptx(self, source: Path, architecture: str, *options: str) -> str:
        """The PTX for ``sm_90`` ..., with CuPy's options."""
        virtual = architecture.replace("sm_", "compute_")
        program, _ = self._compiled(source, f"--gpu-architecture={virtual}", *CUPY_OPTIONS, *options)
        text = self._output(program, "PTX")
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        return text.rstrip(b"\0").decode()

    def _output(self, program: ctypes.c_void_p, kind: str) -> bytes:
        """What a program was compiled to: its PTX, or its CUBIN."""
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
        output = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{kind}")(program, output)
        return output.raw

    def _compiled(self, source: Path, *more: str) -> tuple[ctypes.c_void_p, str]:
        program = ctypes.c_void_p()
        text = source.read_bytes()
        made = self._library.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None)
        assert made == 0
        # An edited source lies beside its own headers, which come before those of the checkout.
        options = [option.encode() for option in (f"-I{source.parent}", *OPTIONS, *more)]
        status = self._library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        size = ctypes.c_size_t()
        self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self._library.nvrtcGetProgramLog(program, log)
        assert status == 0, f"{source.name} with {' '.join(more)}:\n{log.value.decode()}"
        return program, log.value.decode()


@functools.cache
def libraries() -> tuple[Nvrtc, ...]:
    """Those of the wheels nvidia-cuda-nvrtc and nvidia-cuda-nvrtc-cu12."""
    spec = importlib.util.find_spec("nvidia")
    # Newer wheels keep the library in nvidia/cu13, older ones in nvidia/cuda_nvrtc.
    return tuple(
        Nvrtc(path)
        for root in (spec.submodule_search_locations or () if spec else ())
        for path in sorted(Path(root).glob("*/lib/libnvrtc.so.*"))
        if ".alt" not in path.name
    )


@functools.cache
def module_of(source: Path, architecture: str) -> Module:
    """The PTX of one of the CUDA sources by the first NVRTC."""
    return parse(libraries()[0].ptx(source, architecture))


def tool(name: str) -> Path | None:
    """A program of CUDA's toolkit, which Triton's wheel brings as well."""
    spec = importlib.util.find_spec("triton")
    for root in spec.submodule_search_locations or () if spec else ():
        path = Path(root) / "backends" / "nvidia" / "bin" / name
        if path.exists():
            return path
    found = shutil.which(name)
    return Path(found) if found else None
