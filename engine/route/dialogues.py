"""Which queries a cascade leaves to its strategies for dialogues, and to which of them.

A memory of dialogues is one in which more than half of the live records stand beside others in a session. There short
turns share few words with what is asked, and what answers a question stands beside it, so `Cascade.dialogue` reads what
stands around a record. It reads texts, so an engine that keeps none goes on as if every record stood alone. So does a
query that names a time and nothing else ("what happened yesterday?") where there are records of type ``Event``: words
and vectors say nothing of it.

Where an assistant writes at length, most of an exchange is the answer, and neither its length nor who speaks tells
exchanges apart: `Cascade.exchanges` ranks them by words and vectors alone.
"""

from __future__ import annotations

from ..hybrid.context import ASSISTANT, WORDY
from ..hybrid.occasions import time_named
from ..hybrid.sources import Sources, has_vector
from ..hybrid.strategy import Strategy
from ..index.columns import ABSENT
from ..index.neighbours import is_dialogue
from ..index.snapshot import Snapshot
from ..recall.hints import EVENT
from ..recall.optimizer import content_words
from ..records.query import EXCHANGE, Query
from ..search.batch import PreparedQuery
from ..storage.state import MemoryState
from .cascade import Cascade


def dialogue_strategy(
    policy: Cascade, prepared: PreparedQuery, row: int, memory: MemoryState, sources: Sources
) -> Strategy | None:
    """The cascade's strategy for a query that searches dialogues; None where it decides as of other records.

    Raises `QueryError`, which names the query's `row`, for a `now` outside the calendar.
    """
    if sources.records is None or not is_dialogue(prepared.snapshot):
        return None
    alone = _names_time_alone(prepared.query, row)
    if alone and sources.graphs.stats(memory, prepared.snapshot).types.get(EVENT):
        return None
    if not has_vector(prepared, sources):
        return policy.dialogue_words
    by_exchange = policy.exchanges is not None and prepared.query.unit == EXCHANGE
    if by_exchange and _answers_at_length(prepared.snapshot, memory.values["role"].ids.get(ASSISTANT, ABSENT - 1)):
        return policy.exchanges
    return policy.dialogue


def _answers_at_length(snapshot: Snapshot, assistant: int) -> bool:
    """Whether the live records of this role have `WORDY` terms and more on average."""
    key = f"long answers {assistant}"
    if key not in snapshot.derived:
        terms = turns = 0
        for number, segment in enumerate(snapshot.segments):
            alive, roles = snapshot.alive(number), segment.columns.categories.get("role")
            if roles is not None:
                by_assistants = (roles == assistant) & (True if alive is None else alive)
                terms, turns = terms + int(segment.lengths[:, by_assistants].sum()), turns + int(by_assistants.sum())
        snapshot.derived[key] = turns > 0 and terms >= WORDY * turns
    return bool(snapshot.derived[key])


def words_alone(policy: object) -> Strategy | None:
    """The strategy that answers queries which search dialogues and have no vectors, whatever else they ask: one that
    `engine/hybrid/direct.py` may serve. None for other policies.
    """
    return policy.words_alone if isinstance(policy, Cascade) else None


def _names_time_alone(query: Query, row: int) -> bool:
    when = None if query.entities else time_named(query, row)
    return when is not None and not when.speculative and not content_words(query.text, when)
