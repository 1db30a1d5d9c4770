"""The vectors and term weights of records that are about to be written: their own, the caller's, or an encoder's.

An engine's vectors are of one model, the *pin*: ``{"name": ..., "version": ..., "dimension": ...}`` (SPEC B004). The
stored rows are the truth: a text is encoded once, before its record is written, and never again.
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

# Texts that an encoder is given at a time: it sorts them by length, and what is held beside the batch stays small.
CHUNK = 1024

Given = npt.ArrayLike | Mapping[str, npt.ArrayLike] | None
"""Vectors beside records: rows [records, dimension] in the records' order, or by record id."""


def as_encoder(encoder: str | os.PathLike[str] | Encoder | None) -> Encoder | None:
    """The encoder itself, or that of a model's name or path; ``own:384`` is `OwnVectors(384)`.

    Raises as `resolve` of engine/encoders/sentence.py.
    """
    if isinstance(encoder, str) and re.fullmatch("own:[0-9]+", encoder):
        return OwnVectors(int(encoder.removeprefix("own:")))
    if isinstance(encoder, (str, os.PathLike)):
        # Not above: it is optional, and what it needs takes seconds to import.
        from .sentence import resolve

        return cast(Encoder, resolve(encoder))
    return encoder


def pin_of(encoder: Encoder) -> dict[str, Any]:
    """What an engine keeps of its encoder. Raises `ParameterError` for an object that is none."""
    name, version, dimension = (getattr(encoder, part, None) for part in ("name", "version", "dimension"))
    for part, value in (("name", name), ("version", version)):
        if not isinstance(value, str) or not value or value.encode("utf-8", "replace").decode() != value:
            raise ParameterError(
                f"encoder must be a model's name, or an object with name, version, dimension, documents and queries; "
                f"its {part} is {value!r}"
            )
    whole = isinstance(dimension, (int, np.integer)) and not isinstance(dimension, bool)
    if not whole or not 1 <= cast(int, dimension) <= MAX_DIMENSION:
        raise ParameterError(f"encoder: its dimension must be from 1 to {MAX_DIMENSION:,}, not {dimension!r}")
    pin = {"name": name, "version": version, "dimension": int(cast(int, dimension))}
    # Known without the encoder too, so that such records can be added where it is not at hand.
    return pin if getattr(encoder, "encodes", True) else {**pin, "encodes": False}


def term_pin_of(encoder: TermEncoder) -> dict[str, Any]:
    """As `pin_of`, of an encoder of term weights, which has no dimension."""
    pin = {part: getattr(encoder, part, None) for part in ("name", "version")}
    for part, value in pin.items():
        if not isinstance(value, str) or not value or value.encode("utf-8", "replace").decode() != value:
            raise ParameterError(
                f"term_encoder must be an object with name, version, documents and queries; its {part} is {value!r}"
            )
    return pin


def check_pin(pinned: Mapping[str, Any] | None, own: Mapping[str, Any], where: str) -> None:
    """Raise unless what records at `where` have of the model `pinned` can be compared with what `own` makes.

    `ModelMismatchError` for another model; `ParameterError` where no model was pinned, as the records there have
    nothing of it and would be overlooked.
    """
    if pinned is None:
        raise ParameterError(
            f"{where}: was made without such an encoder, so its records hold nothing of {show_pin(own)}; leave it "
            "out, or add the records to a new engine that has it"
        )
    if any(pinned.get(part) != own.get(part) for part in ("name", "version", "dimension")):
        raise ModelMismatchError(
            f"{where}: its records were encoded by {show_pin(pinned)}, not by {show_pin(own)}; give that encoder, or "
            "add the records to a new engine"
        )


def show_pin(pin: Mapping[str, Any]) -> str:
    size = f", {pin['dimension']} dimensions" if "dimension" in pin else ""
    return f"{pin['name']!r}, version {pin['version']!r}{size}"


def add_weights(records: Iterable[Record], encoder: TermEncoder | None) -> Iterator[Record]:
    """The records in order; those without weights get them from the encoder of terms, where there is one."""
    # No generator around another where there is nothing to do: a stream of records passes through here.
    return iter(records) if encoder is None else _encode_weights(records, encoder)


def _encode_weights(records: Iterable[Record], encoder: TermEncoder) -> Iterator[Record]:
    for chunk in _chunks(records):
        missing = [number for number, record in enumerate(chunk) if record.weights is None]
        texts = [chunk[number].text for number in missing]
        made = checked_terms(encoder.documents(texts), len(texts), encoder) if missing else []
        for number, own in zip(missing, made, strict=True):
            chunk[number] = replace(chunk[number], weights=own)
        yield from chunk


def checked_terms(made: Sequence[Mapping[str, float]], count: int, encoder: TermEncoder) -> list[dict[str, float]]:
    """What an encoder of terms made of `count` texts. Raises `EncoderError` for anything else."""
    if not isinstance(made, Sequence) or len(made) != count:
        what = len(made) if isinstance(made, Sequence) else type(made).__name__
        raise EncoderError(f"{encoder.name!r} was asked for the terms of {count} texts and answered with {what}")
    try:
        return [checked_weights(own) for own in made]
    except ValueError as error:
        raise EncoderError(f"the weights that {encoder.name!r} made {error}") from None


def add_embeddings(
    records: Iterable[Record], pin: Mapping[str, Any] | None, encoder: Encoder | None, vectors: Given = None
) -> Iterator[Record]:
    """The records in order, each with its rows; read, and encoded, `CHUNK` texts at a time as they are consumed.

    A record keeps the embedding that it has; else it gets its own of `vectors`; else the encoder encodes its passages,
    or its text where it has none. A blank text has no vector, and neither has a record without one of its own where the
    encoder's attribute ``encodes`` is false. Where
    `pin` is None no record may have one.

    Raises `RecordError` for vectors that do not fit (their number, their dimension, a value that is not finite, a
    length of 0, two for one record), `UnknownIdError` for an id in `vectors` that no record has, `EncoderError`.
    """
    return _refuse_rows(records, vectors) if pin is None else _add_rows(records, pin, encoder, vectors)


def _add_rows(
    records: Iterable[Record], pin: Mapping[str, Any], encoder: Encoder | None, vectors: Given
) -> Iterator[Record]:
    given = _Given(vectors)
    for chunk in _chunks(records):
        made = given.of(chunk)
        missing = [
            number
            for number, record in enumerate(chunk)
            # A blank text says nothing, and whatever a model makes of it is near to anything (D002).
            if record.embedding is None and made[number] is None and (record.passages or record.text.strip())
        ]
        if missing and pin.get("encodes", getattr(encoder, "encodes", True)):
            found = _encode_chunk([chunk[number] for number in missing], pin, encoder)
            for number, own in zip(missing, found, strict=True):
                made[number] = own
        for record, rows in zip(chunk, made, strict=True):
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
    instead = "make the engine with encoder=, a model's name or fr.OwnVectors(dimension)"
    if vectors is not None:
        raise RecordError(f"'vectors' were given to an engine without an encoder; {instead}")
    for record in records:
        if record.embedding is not None:
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
    """The caller's vectors, dealt out to records as they come."""

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
        """The rows of these records, which come next; None where there are none."""
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
        found: list[Halves | None] = []
        for record in chunk:
            if record.id not in self._by_id:
                found.append(None)
                continue
            _check_single([record])
            self._used.add(record.id)
            found.append(_unit(self._by_id[record.id], record, "'vectors'"))
        return found

    def finish(self) -> None:
        """Raise for what no record has taken."""
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
        own = [record.text] if record.passages is None else record.passages
        texts += own
        counts.append(len(own))
    made = np.asarray(encoder.documents(texts))
    if made.shape != (len(texts), pin["dimension"]):
        raise EncoderError(
            f"the encoder {pin['name']!r} made an array of shape {made.shape} of {len(texts)} texts, not "
            f"({len(texts)}, {pin['dimension']})"
        )
    return _units(made, records, counts, f"what {pin['name']!r} made of it")


def _units(values: npt.NDArray[Any], records: Sequence[Record], counts: Sequence[int], what: str) -> Iterator[Halves]:
    """The rows of each record, `counts` of them, at length 1; normalised together, as one by one takes longer."""
    try:
        made = unit_rows(values) if len(values) else values
    except ValueError:
        made = None
    first = 0
    for record, count in zip(records, counts, strict=True):
        own = slice(first, first + count)
        yield _unit(values[own], record, what) if made is None else made[own]
        first += count


def _unit(value: npt.ArrayLike, record: Record, what: str) -> Halves:
    try:
        return unit_rows(value)
    except ValueError as error:
        raise RecordError(f"{what} {error}", record_id=record.id) from None
