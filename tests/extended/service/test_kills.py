"""A server that is killed in the middle of writes has all that it acknowledged, and nothing by half."""

from __future__ import annotations

from support import serve_kills


def test_no_acknowledged_write_is_lost_and_none_is_there_by_half() -> None:
    done = serve_kills.run_round(seed=7, number=0, lives=2)
    assert done.kills == 2
    assert done.acknowledged > 0
