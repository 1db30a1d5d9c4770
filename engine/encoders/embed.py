"""Gives records their vectors and term weights before they are written: their own, the caller's, or an encoder's.

All vectors of an engine are of one model. The *pin* names it: ``{"name": ..., "version": ..., "dimension": ...}`` (SPEC
B004). A text is encoded once, before its record is written; from then on the stored row counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..errors import EncoderError, ModelMismatchError, ParameterError, RecordError, UnknownIdError
from ..records.checks import checked_weights
from ..records.record import Record
from ..vectors.vectors import MAX_DIMENSION, Halves, unit_rows
from .encoder import Encoder, OwnVectors
from .sparse import TermEncoder

# Texts that an encoder gets in one call. They are enough for it to sort by length, and few enough to need little memory
# beside the batch.
CHUNK = 1024

Given = npt.ArrayLike | Mapping[str, npt.ArrayLike] | None
"""Vectors of records: rows [records, dimension] in the records' order, or a mapping from record ids to vectors."""


def as_encoder(encoder: str | os.PathLike[str] | Encoder | None) -> Encoder | None:
    """An encoder as it is, or the encoder of a model's name or path; ``own:384`` is `OwnVectors(384)`.

    Raises as `resolve` of engine/encoders/sentence.py.
    """
    if isinstance(encoder, str) and re.fullmatch("own:[0-9]+", encoder):
        return OwnVectors(int(encoder.removeprefix("own:")))
    if isinstance(encoder, (str, os.PathLike)):
        # Imported here, not at the top: it is optional, and the libraries that it needs take seconds to import.
        from .sentence import resolve

        return cast(Encoder, resolve(encoder))
    return encoder


def pin_of(encoder: Encoder) -> dict[str, Any]:
    """The pin of an encoder, which an engine stores. Raises `ParameterError` for an object that is no encoder."""
    name, version, dimension = (getattr(encoder, part, None) for part in ("name", "version", "dimension"))
    for part, value in (("name", name), ("version", version)):
        if not isinstance(value, str) or not value or value.encode("utf-8", "replace").decode() != value:
            raise ParameterError(
                f"encoder must be a model's name, or an object with name, version, dimension, documents and queries; "
                f"its {part} is {value!r}"
            )
    _check_methods("encoder", encoder, "an encoder has name, version, dimension, documents and queries")
    whole = isinstance(dimension, (int, np.integer)) and not isinstance(dimension, bool)
    if not whole or not 1 <= cast(int, dimension) <= MAX_DIMENSION:
        raise ParameterError(f"encoder: its dimension must be from 1 to {MAX_DIMENSION:,}, not {dimension!r}")
    pin = {"name": name, "version": version, "dimension": int(cast(int, dimension))}
    # Stored in the pin, so that records without vectors can be added when the encoder is not given.
    return pin if getattr(encoder, "encodes", True) else {**pin, "encodes": False}


def term_pin_of(encoder: TermEncoder) -> dict[str, Any]:
    """As `pin_of`, for an encoder of term weights, which has no dimension."""
    pin = {part: getattr(encoder, part, None) for part in ("name", "version")}
    for part, value in pin.items():
        if not isinstance(value, str) or not value or value.encode("utf-8", "replace").decode() != value:
            raise ParameterError(
                f"term_encoder must be an object with name, version, documents and queries; its {part} is {value!r}"
            )
    _check_methods("term_encoder", encoder, "a term encoder has name, version, documents and queries")
    return pin


def _check_methods(parameter: str, encoder: object, form: str) -> None:
    """Refuse an encoder that would fail at the first text."""
    for method in ("documents", "queries"):
        if not callable(getattr(encoder, method, None)):
            raise ParameterError(f"{parameter}: {type(encoder).__name__} has no method {method!r}; {form}")


def check_pin(pinned: Mapping[str, Any] | None, given: Mapping[str, Any], where: str) -> None:
    """Raise unless the records at `where`, encoded by the model `pinned`, can be compared with what `own` encodes.

    Raises `ModelMismatchError` for another model. Raises `ParameterError` if no model was pinned: the records there
    have no vectors or weights, and searches by these would overlook them.
    """
    if pinned is None:
        raise ParameterError(
            f"{where}: was made without such an encoder, so its records hold nothing of {show_pin(given)}; leave it "
            "out, or add the records to a new engine that has it"
        )
    if any(pinned.get(part) != given.get(part) for part in ("name", "version", "dimension")):
        raise ModelMismatchError(
            f"{where}: its records were encoded by {show_pin(pinned)}, not by {show_pin(given)}; give that encoder, or "
            "add the records to a new engine"
        )


def show_pin(pin: Mapping[str, Any]) -> str:
    size = f", {pin['dimension']} dimensions" if "dimension" in pin else ""
    return f"{pin['name']!r}, version {pin['version']!r}{size}"


def add_weights(records: Iterable[Record], encoder: TermEncoder | None) -> Iterator[Record]:
    """The records in order. Those without weights get them from the encoder, if there is one."""
    # Without an encoder no generator is put around the records: a long stream of records may pass through here.
    return iter(records) if encoder is None else _encode_weights(records, encoder)


def _encode_weights(records: Iterable[Record], encoder: TermEncoder) -> Iterator[Record]:
    for chunk in _chunks(records):
        missing = [number for number, record in enumerate(chunk) if record.weights is None]
        texts = [chunk[number].text for number in missing]
        encoded = checked_terms(encoder.documents(texts), len(texts), encoder) if missing else []
        for number, weights in zip(missing, encoded, strict=True):
            chunk[number] = replace(chunk[number], weights=weights)
        yield from chunk


def checked_terms(made: Sequence[Mapping[str, float]], count: int, encoder: TermEncoder) -> list[Mapping[str, float]]:
    """The weights that `encoder` returned for `count` texts, checked. Raises `EncoderError` for anything else."""
    if not isinstance(made, Sequence) or len(made) != count:
        what = len(made) if isinstance(made, Sequence) else type(made).__name__
        raise EncoderError(f"{encoder.name!r} was asked for the terms of {count} texts and answered with {what}")
    try:
        return [checked_weights(weights) for weights in made]
    except ValueError as error:
        raise EncoderError(f"the weights that {encoder.name!r} made {error}") from None


def add_embeddings(
    records: Iterable[Record], pin: Mapping[str, Any] | None, encoder: Encoder | None, vectors: Given = None
) -> Iterator[Record]:
    """The records in order, each with its rows. They are read and encoded `CHUNK` texts at a time, when consumed.

    A record keeps the embedding that it has. Otherwise it gets its vector of `vectors`. Otherwise the encoder encodes
    its passages, or its text if it has no passages. A blank text gets no vector. Neither does any text if the encoder's
    attribute ``encodes`` is false. Without a `pin`, no record may have an embedding.

    Raises `RecordError` for vectors that do not fit (their number, their dimension, a value that is not finite, a
    length of 0, two vectors for one record), `UnknownIdError` for an id in `vectors` that no record has, and
    `EncoderError`.
    """
    return _refuse_rows(records, vectors) if pin is None else _add_rows(records, pin, encoder, vectors)


def _add_rows(
    records: Iterable[Record], pin: Mapping[str, Any], encoder: Encoder | None, vectors: Given
) -> Iterator[Record]:
    given = _Given(vectors)
    for chunk in _chunks(records):
        embeddings = given.of(chunk)
        missing = [
            number
            for number, record in enumerate(chunk)
            # A blank text has no meaning, and a model's vector of it may be close to that of any text (D002).
            if record.embedding is None and embeddings[number] is None and (record.passages or record.text.strip())
        ]
        if missing and pin.get("encodes", getattr(encoder, "encodes", True)):
            encoded = _encode_chunk([chunk[number] for number in missing], pin, encoder)
            for number, rows_of_record in zip(missing, encoded, strict=True):
                embeddings[number] = rows_of_record
        for record, rows in zip(chunk, embeddings, strict=True):
            whole = record if rows is None else record.with_rows(rows)
            if whole.embedding is not None and whole.embedding.shape[1] != pin["dimension"]:
                raise RecordError(
                    f"'embedding' has {whole.embedding.shape[1]} dimensions, and the engine's model "
                    f"{pin['name']!r} has {pin['dimension']}",
                    record_id=record.id,
                )
            yield whole
    given.finish()


def _refuse_rows(records: Iterable[Record], vectors: Given) -> Iterator[Record]:
    instead = "make the engine with encoder='own:{}' for vectors of your own, or with a model's name"
    if vectors is not None:
        raise RecordError(f"'vectors' were given to an engine without an encoder; {instead.format('DIMENSION')}")
    for record in records:
        if record.embedding is not None:
            instead = instead.format(record.embedding.shape[1])
            raise RecordError(f"has an embedding, and the engine has no encoder; {instead}", record_id=record.id)
        yield record


def _chunks(records: Iterable[Record]) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    texts = 0
    for record in records:
        chunk.append(record)
        texts += len(record.passages or "1")
        if texts >= CHUNK:
            yield chunk
            chunk, texts = [], 0
    if chunk:
        yield chunk


class _Given:
    """The caller's vectors, assigned to the records as these arrive."""

    def __init__(self, vectors: Given) -> None:
        self._by_id = vectors if isinstance(vectors, Mapping) else None
        self._rows: npt.NDArray[Any] | None = None
        self._seen = 0
        self._used: set[str] = set()
        if vectors is not None and self._by_id is None:
            try:
                self._rows = np.asarray(vectors)
            except (TypeError, ValueError) as error:
                raise RecordError(f"'vectors' must be numbers, all rows of one length ({error})") from None
            if self._rows.ndim != 2:
                raise RecordError(
                    f"'vectors' must be [records, dimension], or map ids to vectors, not of shape {self._rows.shape}"
                )

    def of(self, chunk: Sequence[Record]) -> list[Halves | None]:
        """The rows of these records, which are the next ones; None for a record without a vector."""
        if self._rows is not None:
            values = self._rows[self._seen : self._seen + len(chunk)]
            self._seen += len(chunk)
            if len(values) < len(chunk):
                raise RecordError(
                    f"'vectors' has {len(self._rows):,} rows, and there are more records",
                    record_id=chunk[len(values)].id,
                )
            _check_single(chunk)
            return list(_units(values, chunk, [1] * len(chunk), "'vectors'"))
        if not self._by_id:
            return [None] * len(chunk)
        rows: list[Halves | None] = []
        for record in chunk:
            if record.id not in self._by_id:
                rows.append(None)
                continue
            _check_single([record])
            self._used.add(record.id)
            rows.append(_unit(self._by_id[record.id], record, "'vectors'"))
        return rows

    def finish(self) -> None:
        """Raise if some of the vectors belong to no record."""
        if self._rows is not None and self._seen != len(self._rows):
            raise RecordError(f"'vectors' has {len(self._rows):,} rows, and there are {self._seen:,} records")
        if self._by_id is not None:
            unknown = next((name for name in self._by_id if name not in self._used), None)
            if unknown is not None:
                raise UnknownIdError(f"'vectors' holds one for {unknown!r}, which is no record of the batch")


def _check_single(records: Iterable[Record]) -> None:
    for record in records:
        if record.embedding is not None:
            raise RecordError("has an embedding, and one in 'vectors'; leave one of them out", record_id=record.id)


def _encode_chunk(records: Sequence[Record], pin: Mapping[str, Any], encoder: Encoder | None) -> Iterator[Halves]:
    if encoder is None:
        raise RecordError(
            f"has no embedding, and the engine was opened without its encoder, {show_pin(pin)}; open it with "
            "encoder=, or give the vector along",
            record_id=records[0].id,
        )
    texts: list[str] = []
    counts = []
    for record in records:
        passages = [record.text] if record.passages is None else record.passages
        texts += passages
        counts.append(len(passages))
    vectors = np.asarray(encoder.documents(texts))
    if vectors.shape != (len(texts), pin["dimension"]):
        raise EncoderError(
            f"the encoder {pin['name']!r} made an array of shape {vectors.shape} of {len(texts)} texts, not "
            f"({len(texts)}, {pin['dimension']})"
        )
    return _units(vectors, records, counts, f"what {pin['name']!r} made of it")


def _units(values: npt.NDArray[Any], records: Sequence[Record], counts: Sequence[int], what: str) -> Iterator[Halves]:
    """The rows of each record at length 1; `counts` are the numbers of rows.

    All rows are normalised together, which is faster. If that fails, each record's rows are normalised alone, so that
    the error names the record.
    """
    try:
        units = unit_rows(values) if len(values) else values
    except ValueError:
        units = None
    first = 0
    for record, count in zip(records, counts, strict=True):
        rows = slice(first, first + count)
        yield _unit(values[rows], record, what) if units is None else units[rows]
        first += count


def _unit(value: npt.ArrayLike, record: Record, what: str) -> Halves:
    try:
        return unit_rows(value)
    except ValueError as error:
        raise RecordError(f"{what} {error}", record_id=record.id) from None
