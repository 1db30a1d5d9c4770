"""Strategies and policies that reproduce a source word for word. `fanrank.strategies.STRATEGIES` are the ones to pick.

A search takes their names too: ``engine.search(batch, strategy="agent_rrf")``.
"""

from . import _public
from .engine.route.policy import PUBLISHED

__all__ = ["PUBLISHED"]

_public.publish(__name__)
