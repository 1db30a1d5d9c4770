"""Encoders, which turn texts into vectors or weighted terms, and a cache of vectors."""

from . import _public
from .engine.encoders.cache import CachedEncoder
from .engine.encoders.encoder import Encoder
from .engine.encoders.sparse import SparseSentenceEncoder, TermEncoder, weights_of

__all__ = [
    "CachedEncoder",
    "Encoder",
    "SparseSentenceEncoder",
    "TermEncoder",
    "weights_of",
]

_public.publish(__name__)
