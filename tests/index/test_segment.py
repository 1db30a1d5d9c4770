"""One CSR: the fixture of SPEC A015, and raw counts (A011) of any size."""

from __future__ import annotations

import numpy as np
import pytest
from support.segments import build

import fanrank as fr
from fanrank.engine.index.segment import merge_segments


def test_the_fixture() -> None:
    """SPEC A015. The filler sorts after "fish", so that it comes after the fixture's three lists."""
    held = ["cat cat fish", "dog", "cat dog dog", "cat fish", "cat cat cat dog"]
    lengths = [10, 8, 12, 7, 9]
    texts = [text + " zebra" * (n - len(text.split())) for text, n in zip(held, lengths, strict=True)]
    segment, vocabulary = build(texts)
    assert vocabulary.strings == ["cat", "dog", "fish", "zebra"]
    assert segment.terms.tolist() == [0, 1, 2, 3]
    assert segment.offsets[:4].tolist() == [0, 4, 7, 9]
    assert segment.documents[:9].tolist() == [0, 2, 3, 4, 1, 2, 4, 0, 3]
    assert segment.frequencies()[0, :9].tolist() == [2, 1, 1, 3, 1, 2, 1, 1, 1]
    assert segment.frequencies(slice(4, 7)).tolist() == [[1, 2, 1]]
    assert segment.frequencies(np.array([3, 0])).tolist() == [[3, 2]]
    assert segment.lengths.tolist() == [lengths]
    positions = segment.locate(np.array([0, 1], dtype=np.int32))  # "cat dog"
    touched = [segment.offsets[p : p + 2].tolist() for p in positions]
    assert touched == [[0, 4], [4, 7]]
    assert (segment.size, segment.postings) == (5, 9 + 5)


@pytest.mark.parametrize("count", [256, 65_536])
def test_no_count_is_too_large(count: int) -> None:
    segment, _ = build(["cat " * count, "cat dog"])
    assert segment.frequencies().tolist() == [[count, 1, 1]]
    engine = fr.Engine.from_records([fr.Record("a", "cat " * count), fr.Record("b", "cat dog")], analyzer="minimal")
    assert engine.explain("cat", "a").terms[0].frequencies == {"text": count}
    small, _ = build(["dog"], terms=("cat", "dog"))
    merged = merge_segments([segment, small])
    assert merged.frequencies().tolist() == [[count, 1, 1, 1]]
