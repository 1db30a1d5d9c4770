"""Both statements of the analyzer "agent" agree on every character of Unicode, alone and inside words."""

from __future__ import annotations

import pytest

from fanrank.engine.check.oracle_agent import agent_tokens as plain_tokens
from fanrank.engine.text.agent import agent_tokens


@pytest.mark.parametrize("part", [*range(0, 0x32000, 0x1000), 0xE0000])
def test_both_statements_of_agent_agree_on_every_character(part: int) -> None:
    for code in range(part, part + 0x1000):
        for text in (chr(code), f"aB{chr(code)}Cd", f"日{chr(code)}_{chr(code)}本"):
            assert plain_tokens(text) == agent_tokens(text), hex(code)
