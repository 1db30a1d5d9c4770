"""How a record scores under a strategy, channel by channel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..fuse.candidates import Candidates, Fused
from ..records.explanation import ChannelShare, Explanation, FusedExplanation
from ..search.explain import number_of, position_of
from .evidence import EvidenceCollector
from .strategy import Lexical


def explain_hits(
    collector: EvidenceCollector, candidates: Candidates, fused: Fused, position: int, record_id: str
) -> FusedExplanation:
    batch = collector.batch
    position = position_of(batch, position)
    row, document = batch.source[position], number_of(batch, position, record_id)
    lexical: Explanation | None = None
    for channel in collector.strategy.channels:
        if isinstance(channel, Lexical):
            explain = collector.explainer(channel, row)
            lexical = None if explain is None else explain(position, record_id)
    name = collector.strategy.name
    explanation = explain_fused(candidates, fused, row, document, query=position, id=record_id, strategy=name)
    return replace(explanation, lexical=lexical)


def explain_fused(
    candidates: Candidates, fused: Fused, row: int, document: int, *, query: int, id: str, strategy: str
) -> FusedExplanation:
    """What the channels say of a document for the candidates' query `row`."""
    start, end = candidates.offsets[row : row + 2].tolist()
    at = start + int(np.searchsorted(candidates.documents[start:end], document))
    is_candidate = at < end and candidates.documents[at] == document
    shares = []
    for name in dict.fromkeys([*candidates.channels, *fused.shares]):
        channel = candidates.channels.get(name)
        listed_at = 0 if channel is None or not is_candidate else int(channel.ranks[at])
        scored = channel is not None and is_candidate and bool(channel.scored[at])
        share = fused.shares.get(name)
        shares.append(
            ChannelShare(
                channel=name,
                rank=listed_at or None,
                score=float(channel.scores[at]) if channel is not None and scored else None,
                share=float(share[at]) if share is not None and is_candidate else 0.0,
            )
        )
    return FusedExplanation(
        query=query,
        id=id,
        document=document,
        strategy=strategy,
        score=float(fused.scores[at]) if is_candidate and fused.kept[at] else None,
        channels=tuple(shares),
        lexical=None,
    )
