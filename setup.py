"""The extension module of `native/`; the rest of the build is in pyproject.toml.

The extension is optional: where no compiler is, the package installs without it and serves by numpy. With
``FANRANK_NATIVE=required``, as for wheels that others install, such a build fails. ``pip install -v`` shows each file.
"""

import os
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
# Views of arrays are in the stable ABI from 3.11 on. A build for 3.10 or without the interpreter's lock serves that
# version alone.
stable = sys.version_info >= (3, 11) and not free_threaded
version = "0x030B0000" if stable else f"0x{sys.version_info.major:02X}{sys.version_info.minor:02X}0000"

if os.name == "nt":
    compile_args = ["/std:c++20", "/O2", "/fp:precise", "/EHsc"]
else:
    # No contraction: a fused multiply-add would round once where every other backend rounds twice.
    compile_args = ["-std=c++20", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    compile_args += ["-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]
    # Python's own flags ask for symbols of a debugger, which are nine tenths of the file.
    compile_args += ["-g0"]

link_args = [] if os.name == "nt" else ["-pthread"]
# tests/extended/sanitizers/sanitize.sh adds its own.
compile_args += os.environ.get("FANRANK_CXXFLAGS", "").split()
link_args += os.environ.get("FANRANK_LDFLAGS", "").split()


class Build(build_ext):
    """Compiles the sources side by side, and those alone that are newer than their object file: 12 s instead of 35 on
    two cores, and 5 for a change of one file.
    """

    def build_extensions(self):
        compile_in_turn = self.compiler.compile
        headers = [os.path.getmtime(path) for path in (*glob("native/*.hpp"), __file__)]

        def compile_sources(sources, output_dir=None, **options):
            objects = self.compiler.object_filenames(sources, output_dir=output_dir)
            # Whatever changes the code: the compiler, the flags and the options of this call.
            said = repr((self.compiler.__dict__.get("compiler_so"), sorted(map(repr, options.items()))))
            stamp = Path(output_dir or ".") / "flags"
            same = stamp.exists() and stamp.read_text() == said

            def is_old(source, path):
                newest = max(os.path.getmtime(source), *headers)
                return not same or not os.path.exists(path) or os.path.getmtime(path) <= newest

            old = [source for source, path in zip(sources, objects, strict=True) if is_old(source, path)]
            if old:
                stamp.unlink(missing_ok=True)

            def compile_one(source):
                compile_in_turn([source], output_dir=output_dir, **options)
                done.append(source)
                print(f"compiled {source}, {len(done)} of {len(old)}", file=sys.stderr, flush=True)

            done = []
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(compile_one, old))
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.write_text(said)
            return objects

        self.compiler.compile = compile_sources
        super().build_extensions()


# Rooms of a checkout, which are packages below `fanrank`.
ROOMS = ("engine", "integrations", "kernels", "cpu_fallback", "native", "client", "server", "shards")
inner = [f"{room}.{name}" for room in ROOMS for name in find_packages(room)]

setup(
    packages=["fanrank", *(f"fanrank.{name}" for name in (*ROOMS, *inner))],
    cmdclass={"build_ext": Build},
    ext_modules=[
        Extension(
            "fanrank.native._compiled",
            sources=sorted(glob("native/*.cpp")),
            depends=sorted(glob("native/*.hpp")),
            define_macros=[("PY_VERSION_LEAST", version)],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
            language="c++",
            py_limited_api=stable,
            optional=os.environ.get("FANRANK_NATIVE") != "required",
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable else {},
)
