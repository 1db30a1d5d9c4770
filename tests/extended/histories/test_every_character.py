"""The analyzer "agent" cuts every character of Unicode alike in compiled loops and in Python, alone and in words."""

from __future__ import annotations

import pytest

from fanrank import native
from fanrank.engine.text.analyzers import get_analyzer
from fanrank.engine.text.vocabulary import TermIndexer, Vocabulary


@pytest.mark.skipif(native.compiled is None, reason=native.reason)
@pytest.mark.parametrize("part", [*range(0, 0x32000, 0x1000), 0xE0000])
def test_both_statements_of_agent_agree_on_every_character(part: int) -> None:
    analyzer = get_analyzer("agent")
    indexer = TermIndexer(analyzer, Vocabulary(()))
    letters = map(chr, range(part, part + 0x1000))
    texts = [text for c in letters for text in (c, f"aB{c}Cd", f"日{c}_{c}本")]
    found: list[list[str]] = [[] for _ in texts]
    for term, document in zip(*map(list, indexer.encode_documents(texts)), strict=True):
        found[document].append(indexer.vocabulary.strings[term])
    for text, terms in zip(texts, found, strict=True):
        assert terms == analyzer(text), ascii(text)
