"""Thousands of requests at once are answered or turned away, and the server answers afterwards."""

from __future__ import annotations

from support import serve_flood
from support.live import message, serving

import fanrank as fr

PARALLEL = 2_000


def test_thousands_of_requests_at_once_are_answered_or_turned_away() -> None:
    engine = fr.Engine()
    engine.add([{"id": str(place), "text": f"tea number {place}"} for place in range(100)])
    with serving(engine) as live:
        answers = serve_flood.flood(live.port, [message(b'{"query": "tea"}')] * PARALLEL, 600.0).answers
        assert answers["200"] > 0
        assert set(answers) <= {"200", "503"}
        assert answers.total() == PARALLEL
        assert live.answers()
