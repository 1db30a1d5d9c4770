"""Anchors: a cache of the vectors of records' first sentences, so that each is encoded once (SPEC E005)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from ..arrays import Floats
from ..encoders.encoder import Encoder, check_rows
from ..locks import make_short_lock
from ..vectors.vectors import Halves, normalize
from .sentences import first_sentence

# Sentences in the cache; the least recently used are evicted. 384 dimensions take 50 MB.
KEPT = 1 << 16


class Anchors:
    """A cache of the vectors of sentences.

    Many threads may use it at once. Two that need a new sentence at the same time may both encode it.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._known: OrderedDict[str, Halves] = OrderedDict()
        self._lock = make_short_lock()

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Vectors [texts, dimension] of the texts' first sentences, at length 1; 0 for a text without a sentence."""
        sentences = [first_sentence(text) for text in texts]
        vectors = np.zeros((len(texts), self._encoder.dimension))
        wanted = [anchor for anchor in dict.fromkeys(sentences) if anchor]
        with self._lock:
            found = {anchor: self._known[anchor] for anchor in wanted if anchor in self._known}
        new = [anchor for anchor in wanted if anchor not in found]
        if new:
            # Not under the lock: it may take long, and the encoder may fork.
            encoded = normalize(check_rows(self._encoder.documents(new), new, self._encoder))
            found |= zip(new, encoded, strict=True)
        with self._lock:
            for anchor in wanted:
                self._known[anchor] = found[anchor]
                self._known.move_to_end(anchor)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        for row, sentence in enumerate(sentences):
            if sentence:
                vectors[row] = found[sentence]
        return vectors
