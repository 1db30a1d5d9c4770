"""`fanrank doctor`: shows what would serve on this machine, and why the rest would not."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata

import click
import numpy as np

from ..backends import choose as backends
from ..errors import BackendUnavailableError
from ..text.analyzers import DEFAULT_ANALYZER, get_analyzer
from ..text.dispatch import choose_token_path
from ..vectors.faiss_index import faiss_status
from .options import json_option
from .output import print_json

GPU = ["torch", "triton", "nvtx"]
SERVER = ["starlette", "uvicorn", "httptools", "orjson", "opentelemetry-api"]
EXTRAS = {
    "dense": ["sentence-transformers"],
    "approximate": ["faiss-cpu"],
    "eval": ["pytrec-eval-terrier"],
    "tables": ["pandas", "pyarrow"],
    "snowball": ["PyStemmer"],
    "ray": ["ray"],
    "tune": ["scikit-learn"],
    "client": ["httpx"],
    "server": SERVER,
    "mcp": [*SERVER, "mcp"],
    "anthropic": ["anthropic"],
    "crewai": ["crewai"],
    "google-adk": ["google-adk"],
    "haystack": ["haystack-ai"],
    "langchain": ["langchain-core"],
    "langgraph": ["langgraph-checkpoint"],
    "llama-index": ["llama-index-core"],
    "mem0": ["mem0ai"],
    "openai-agents": ["openai-agents"],
    "sentence-transformers": ["sentence-transformers"],
    "beir": ["beir"],
    "ir-measures": ["ir-measures"],
    "mteb": ["mteb"],
    "pyterrier": ["pyterrier"],
    "ranx": ["ranx"],
    "gpu": GPU,
    "gpu-cuda12": [*GPU, "cupy-cuda12x", "faiss-gpu"],
    "gpu-cuda13": [*GPU, "cupy-cuda13x", "faiss-gpu-cuvs"],
}
"""Extra -> the packages that it installs."""
USES = {
    "sentence-transformers": "encoders: texts to vectors and to weighted terms",
    "faiss-cpu": "approximate search of vectors: HNSW",
    "pytrec-eval-terrier": "metrics of `fanrank eval`",
    "pandas": "tables of answers",
    "pyarrow": "tables of answers, Parquet",
    "PyStemmer": "stemmers of 34 languages: analyzers `snowball:LANGUAGE`",
    "scikit-learn": "`fanrank tune`",
    "httpx": "`fr.Client`: an engine in another process",
    "starlette": "`fanrank serve`: requests and answers",
    "uvicorn": "`fanrank serve`: connections",
    "httptools": "`fanrank serve`: the parser of HTTP",
    "orjson": "`fanrank serve`: JSON",
    "opentelemetry-api": "`fanrank serve`: spans, where the OpenTelemetry SDK is set up",
    "mcp": "`fanrank mcp`: tools for agents",
    "ray": "shards of a memory in processes of their own, on one machine or many",
    "anthropic": "an adapter: Claude's memory tool",
    "crewai": "an adapter: storage of CrewAI's memory",
    "google-adk": "an adapter: memory service of Google's Agent Development Kit",
    "haystack-ai": "an adapter: document store and retrievers of Haystack",
    "langchain-core": "an adapter: retriever and vector store of LangChain",
    "langgraph-checkpoint": "an adapter: store of LangGraph",
    "llama-index-core": "an adapter: retriever and vector store of LlamaIndex",
    "mem0ai": "an adapter: vector store of mem0",
    "openai-agents": "tools of the OpenAI Agents SDK",
    "beir": "an adapter: search model of BEIR",
    "ir-measures": "hits as a run of ir_measures",
    "mteb": "an adapter: search model of MTEB",
    "pyterrier": "an adapter: retriever and indexer of PyTerrier",
    "ranx": "hits as a run of ranx",
    "torch": "memory, streams and graphs of a GPU, and products of vectors",
    "triton": "the Triton kernels, and late interaction of vectors on a GPU",
    "nvtx": "names of phases in a profile",
    "cupy-cuda12x": "compiles and launches the CUDA kernels, for CUDA 12",
    "cupy-cuda13x": "compiles and launches the CUDA kernels, for CUDA 13",
    "faiss-gpu": "approximate search of vectors: HNSW, and all rows on a GPU, for CUDA 12",
    "faiss-gpu-cuvs": "approximate search of vectors: HNSW, and CAGRA on a GPU, for CUDA 13",
}
"""Package -> what it is for."""
FAISS = {package for package in USES if package.startswith("faiss")}
"""Packages that hold the module faiss, so that one overwrites the files of another."""


def is_brought(package: str) -> bool:
    """Whether the extras install the package on this machine; where they do not, it has no wheels."""
    linux, x86 = platform.system() == "Linux", platform.machine() == "x86_64"
    if package == "faiss-gpu-cuvs":
        return linux and x86 and sys.version_info >= (3, 11)
    if package == "crewai":
        return sys.version_info < (3, 14)
    if package in ("google-adk", "haystack-ai", "mteb"):
        return sys.version_info >= (3, 11)
    return package not in ("triton", "faiss-gpu") or (linux and (package == "triton" or x86))


def is_installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


@click.command()
@click.option("--extras", is_flag=True, help="Say of each extra which packages it brings, and how to install it.")
@json_option
def doctor(extras: bool, as_json: bool) -> None:
    """Show what would serve, why the rest would not, and which extras are there.

    What serves: a backend for searches, a path for texts, an index for approximate search of vectors.
    """
    try:
        chosen = backends.choose()
        served, reason, gpu = chosen.name, chosen.reason, chosen.gpu
    except BackendUnavailableError as error:
        served, reason, gpu = None, str(error), None
    installed = {package for package in USES if is_installed(package)}
    packages = [
        {
            "package": package,
            "installed": package in installed,
            "use": use,
            "extras": [extra for extra, brought in EXTRAS.items() if package in brought],
        }
        for package, use in USES.items()
    ]
    text = choose_token_path(get_analyzer(DEFAULT_ANALYZER))
    approximate = faiss_status(gpu)
    result = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "backend": served,
        "reason": reason,
        "backends": [vars(status) for status in backends.statuses()],
        "text": vars(text),
        "approximate": vars(approximate),
        "extras": {extra: not _absent(extra, installed) for extra in EXTRAS},
        "packages": packages,
    }
    if as_json:
        print_json(result)
        return
    click.echo(f"Python {result['python']}, numpy {result['numpy']}, {result['cpus']} CPUs, {result['platform']}")
    for status in backends.statuses():
        click.echo(f"  {status.name:8} {'usable' if status.usable else 'not usable'}: {status.reason}")
    click.echo(f"would serve: {served or 'none'} ({reason})")
    click.echo(f"text to term ids: {text}")
    click.echo(f"approximate search: {approximate.index or 'none'} ({approximate.reason})")
    if not extras:
        there = [extra for extra in EXTRAS if not _absent(extra, installed)]
        missing = [extra for extra in EXTRAS if extra not in there]
        click.echo(f"extras: {', '.join(there) or 'none'}")
        click.echo(f"missing: {', '.join(missing) or 'none'} (`fanrank doctor --extras` says how to install them)")
        return
    for extra in EXTRAS:
        click.echo(f"  extra {extra}: {_describe(extra, installed)}")
    for package in packages:
        if package["installed"]:
            click.echo(f"  {package['package']}: {package['use']}")


def _absent(extra: str, installed: set[str]) -> list[str]:
    """The packages that the extra would install here and that are not there. Any of FAISS's will do where the one for
    the CPU is asked for.
    """
    there = installed | {"faiss-cpu"} if installed & FAISS else installed
    return [package for package in EXTRAS[extra] if package not in there and is_brought(package)]


def _describe(extra: str, installed: set[str]) -> str:
    absent = _absent(extra, installed)
    elsewhere = [package for package in EXTRAS[extra] if not is_brought(package) and package not in installed]
    note = f"; not for this machine: {', '.join(elsewhere)}" if elsewhere else ""
    if not absent:
        other = min(installed & FAISS, default="")
        brought = [package for package in EXTRAS[extra] if package not in elsewhere]
        there = (package if package in installed else f"{other} in place of {package}" for package in brought)
        return ", ".join(there) + note
    clash = sorted(installed & FAISS) if FAISS.intersection(absent) else []
    uninstall = f"pip uninstall {' '.join(clash)}; " if clash else ""
    are = "is" if len(absent) == 1 else "are"
    return f"{', '.join(absent)} {are} missing; run: {uninstall}pip install 'fanrank[{extra}]'{note}"
