"""How texts become weighted terms: analyzers and the methods of BM25."""

from . import _public
from .engine.index.bm25 import METHODS
from .engine.index.profiles import DEFAULT_PROFILE, PROFILES, Profile
from .engine.text.analyzers import ANALYZERS, Analyzer, get_analyzer, make_analyzer, register_analyzer

__all__ = [
    "ANALYZERS",
    "DEFAULT_PROFILE",
    "METHODS",
    "PROFILES",
    "Analyzer",
    "Profile",
    "get_analyzer",
    "make_analyzer",
    "register_analyzer",
]

_public.publish(__name__)
