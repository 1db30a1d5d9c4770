"""Learned term weights: turns texts, or matrices of callers, into maps from terms to weights (SPEC A105, A108)."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..arrays import Integers, offsets_of
from ..errors import ParameterError
from ..records.term_weights import WeightRows
from .models import fingerprint, open_model, repair_texts

Weights = Mapping[str, float]


class TermEncoder(Protocol):
    """A model that turns texts into weighted terms, as an `Encoder` turns them into vectors."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Differs whenever a weight may differ."""
        ...

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> list[Weights]:
        """The terms of each passage and their weights, all above 0."""
        ...

    def queries(self, texts: Sequence[str]) -> list[Weights]:
        """The terms of each query and their weights, all above 0."""
        ...


class SparseSentenceEncoder:
    """A SparseEncoder of sentence-transformers, such as SPLADE, as a `TermEncoder`; safe to use from many threads.

    Terms are the tokens of the model's vocabulary. The weight of a token is the largest ``log1p(relu(logit))`` over the
    positions of the text; tokens of weight 0 are left out. The defaults are those of SPLADE++ in the AgentIR paper: 256
    tokens of a text are read, and a batch has 8 texts (its logits take 8 * 256 * 30,522 * 4 bytes, 250 MB). `model` and
    `device` are as in `SentenceEncoder`. Raises `EncoderError`, `ParameterError`, `MissingExtraError`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Any,
        *,
        name: str | None = None,
        max_length: int | None = 256,
        batch_size: int = 8,
        device: str | None = None,
    ) -> None:
        self.name: str
        model, self.name = open_model("SparseEncoder", model, name, device, max_length, batch_size)
        self.batch_size = batch_size
        self._model = model
        self._lock = threading.Lock()
        vocabulary = model.tokenizer.get_vocab()
        self._terms = [""] * (max(vocabulary.values()) + 1)
        for term, number in vocabulary.items():
            self._terms[number] = term
        prompts = {key: text for key, text in sorted(model.prompts.items()) if text}
        self.version: str = fingerprint(
            model, self.name, prompts=[prompts, model.default_prompt_name], most=model.max_active_dims
        )

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> list[Weights]:
        """As `TermEncoder`. The bar is shown on a terminal only."""
        return self._encode(self._model.encode_document, texts, progress)

    def queries(self, texts: Sequence[str]) -> list[Weights]:
        """As `TermEncoder`."""
        return self._encode(self._model.encode_query, texts, False)

    def _encode(self, encode: Any, texts: Sequence[str], progress: bool) -> list[Weights]:
        repaired = repair_texts(texts)
        if not repaired:
            return []
        with self._lock:
            matrix = encode(
                repaired,
                batch_size=self.batch_size,
                show_progress_bar=progress and sys.stderr.isatty(),
                convert_to_sparse_tensor=True,
                save_to_cpu=True,
            )
        return weights_of(matrix, self._names(int(matrix.shape[1])))

    def _names(self, width: int) -> list[str]:
        # A model may have more columns than tokens, so that their number is a multiple of 8.
        return self._terms[:width] + [f"[column {number}]" for number in range(len(self._terms), width)]

    def __repr__(self) -> str:
        return f"SparseSentenceEncoder({self.name!r})"


def weights_of(matrix: Any, names: Sequence[str] | None = None) -> list[Weights]:
    """The rows of a matrix of weights as mappings from terms to weights, in the order of the columns, without zeros.

    `matrix` [n, V] is a scipy sparse matrix or array of any format, a torch tensor of any layout, or a numpy array. The
    term of column j is ``names[j]``, or ``str(j)`` without names. If a format holds an entry twice, the two are summed.
    The mappings are immutable rows of one copy of the matrix: 8 bytes a posting for weights of float32, 12 for float64,
    where dictionaries take 65. Give them to records and queries as ``weights``.

    Raises `ParameterError` for another shape, for names that are not V different strings or that hold lone surrogates,
    and for a weight that is negative, not finite or not a real number.
    """
    starts, columns, values, shape = _entries(matrix)
    if names is not None:
        if len(names) != shape[1]:
            raise ParameterError(f"the matrix has {shape[1]} columns, but there are {len(names)} names")
        if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
            raise ParameterError("the names of the columns must be strings, and no two alike")
        for name in names:
            if not name.isascii() and name.encode("utf-8", "replace").decode() != name:
                raise ParameterError(f"the name {name!r} of a column holds a lone surrogate, which no file can store")
    bad = ~(values >= 0.0) | ~np.isfinite(values)
    if bad.any():
        entry = int(np.argmax(bad))
        at = f"row {np.searchsorted(starts, entry, 'right') - 1}, column {columns[entry]}"
        if names is not None:
            at += f" ({names[columns[entry]]!r})"
        raise ParameterError(f"{at}: a weight must be finite and 0 or more, not {values[entry]}")
    if not values.all():
        positive = values > 0.0
        starts, columns, values = offsets_of(positive)[starts], columns[positive], values[positive]
    if names is None:
        # A matrix may have far more columns than entries.
        used, columns = np.unique(columns, return_inverse=True)
        names = list(map(str, used.tolist()))
    return [*WeightRows(starts, columns.reshape(-1).astype(np.int32, copy=False), values, tuple(names)).rows()]


def _entries(matrix: Any) -> tuple[Integers, npt.NDArray[np.integer[Any]], npt.NDArray[Any], tuple[int, int]]:
    """(where each row begins, columns, values, the shape) of a matrix: its entries by row, then column, in arrays of
    their own. Values are float32 where that holds them exactly, else float64.
    """
    try:
        shape = tuple(int(length) for length in getattr(matrix, "shape", None) or np.shape(matrix))
    except ValueError:
        raise ParameterError("a matrix [texts, terms] of weights is needed, its rows of one length") from None
    if len(shape) != 2:
        raise ParameterError(f"a matrix [texts, terms] of weights is needed, not one of shape {shape}")
    if hasattr(matrix, "tocoo"):
        csr = matrix.tocsr(copy=True)
        csr.sum_duplicates()
        starts, columns, data = csr.indptr, csr.indices, csr.data
    else:
        if hasattr(matrix, "to_sparse_coo"):
            tensor = matrix.detach().cpu().to_sparse_coo().coalesce().clone()
            (rows, columns), held = tensor.indices().numpy(), tensor.values()
            data = held.numpy() if held.is_complex() else held.double().numpy()
            if held.itemsize < 8 and held.is_floating_point():
                data = data.astype(np.float32)
        else:
            dense = np.asarray(matrix)
            rows, columns = np.nonzero(dense)
            data = dense[rows, columns]
        starts = offsets_of(np.bincount(rows, minlength=shape[0]))
    if np.iscomplexobj(data):
        raise ParameterError("the weights must be real numbers, not complex ones")
    exact = data.dtype.kind in "biuf" and np.can_cast(data.dtype, np.float32)
    try:
        values = np.asarray(data, dtype=np.float32 if exact else np.float64)
    except (TypeError, ValueError):
        raise ParameterError("the weights must be numbers") from None
    return np.asarray(starts, dtype=np.int64), columns, values, (shape[0], shape[1])
