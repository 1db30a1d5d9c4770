"""Analyzers that no compiled loops know give the terms that plain loops give (support/plain_text.py)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.plain_text import PLAIN

from fanrank.text import get_analyzer

PIECES = [
    *"aAbeiouySsdgltz019 ..,;:'\"--_()’`\n\t/",
    *("ing", "ed", "ies", "ational", "sses", "running", "don't", "the", "logi", "alli", "fulli", "ied", "eed", "'s"),
    *("’s", "(k)", "(ab)", "401", "E-47821", "BRK.B", "e\u0301", "x" * 300),
    *"İΣςéßﬁ½²Ⅷ٣４１\u0345\u00ad\ud800\u202f\u200d\ufe0f😀☎❤👩🏽🇩🇪日々ひカーｶא״กำာ_＿\u2010",
]


@settings(deadline=None, max_examples=80)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_both_statements_of_every_analyzer_agree(text: str) -> None:
    for name, plain in PLAIN.items():
        assert plain(text) == get_analyzer(name)(text), name
