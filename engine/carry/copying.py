"""Copies the records of an engine into a new directory, with other parameters.

The copy is made beside the target and renamed once it is whole and on disk. A copy that was killed is begun anew.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ..encoders.embed import add_embeddings, add_weights, as_encoder, check_pin, pin_of, show_pin, term_pin_of
from ..encoders.pins import PINNED, Models
from ..encoders.sparse import TermEncoder
from ..errors import EncoderError, FanrankError, ForeignIndexError, RecordError, StorageError, StoreLockedError
from ..index.profiles import CHOSEN
from ..opening import OpenIndex
from ..records.record import Record
from ..storage.backup import check_apart
from ..storage.failpoints import reach
from ..storage.index_files import INDEX, is_index_file
from ..storage.lock import LOCK, let_go, make_folder, take_lock
from ..storage.record_stream import count_records, stream_records
from ..storage.row_codec import RECORDS
from ..storage.storage import Storage
from ..storage.sync import sync
from ..storage.writes import chunks_of
from .files import path_of
from .progress import counted

logger = logging.getLogger("fanrank")


class Target(Protocol):
    """The engine of the new directory."""

    index: OpenIndex

    def close(self) -> None: ...


OpenTarget = Callable[..., Target]
"""`Engine.open`."""


@dataclass(frozen=True)
class Pinned:
    """Stands for a model that made the vectors or weights of the records, and that is not at hand."""

    name: str
    version: str
    dimension: int = 1
    encodes: bool = True

    def documents(self, texts: Sequence[str], **_: Any) -> Any:
        if not texts:
            return []
        raise EncoderError(f"{self.name!r} is not at hand to encode; open the engine with it")

    queries = documents


def copy(
    memory: Storage,
    models: Models,
    path: str | os.PathLike[str],
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    open: OpenTarget,
    progress: bool,
) -> int:
    """As `Engine.copy_to`; `models` and `config` are those of the engine that is copied."""
    memory.check_texts()
    target = path_of(path)
    _check_free(target)
    if memory.store is not None:
        check_apart(memory.store.path.parent, target)
    known = {name: value for name, value in config.items() if name not in PINNED}
    options = {name: value for name, value in options.items() if value is not None or name not in CHOSEN}
    if options.get("profile") is not None:
        # The new profile's numbers go for all that is not given beside it.
        known = {name: value for name, value in known.items() if name not in ("method", "k1", "b", "delta")}
    elif options.get("method") is not None:
        del known["delta"]  # each method has a default of its own
    change = _Change.of(models, options, "the engine" if memory.store is None else str(memory.store.path.parent))
    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear(partial)
        reach("copy.begin")
        try:
            engine = open(partial, backend="numpy", **{**known, **options, **change.encoders})
            try:
                total = count_records(memory.store, memory.state) if progress else None
                held = stream_records(memory.store, memory.state)
                if "fields" in options:
                    held = _searched(held, engine)
                count = _fill(engine, change.apply(counted(held, "copying", total, progress)))
            finally:
                engine.close()
            reach("copy.written")
            _rename(partial, target)
        except StoreLockedError:
            raise
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        if isinstance(error, FanrankError):
            raise
        raise StorageError(f"{target}: cannot be written: {error.strerror or error}") from error
    reach("copy.renamed")
    return count


def _searched(records: Iterable[Record], engine: Target) -> Iterator[Record]:
    """The records, whose text fields the new engine must search."""
    fields = engine.index.ready().bm25.fields
    for record in records:
        for name in record.fields:
            if name not in fields:
                raise RecordError(
                    f"the record has the field {name!r}, and no search of the copy would find it; keep it in fields=, "
                    f"as in fields={{{', '.join(f'{field!r}: 1.0' for field in (*fields, name))}}}",
                    record_id=record.id,
                )
        yield record


def _fill(engine: Target, records: Iterator[Record]) -> int:
    count = 0
    for chunk in chunks_of(records):
        engine.index.ready().write(added=chunk)
        count += len(chunk)
        reach("copy.batch")
    return count


def _check_free(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise ForeignIndexError(f"{target}: is there already; a copy needs a new directory, or an empty one")


def _clear(partial: Path) -> None:
    """Make an empty directory, or empty the one that a killed copy left.

    Raises `StoreLockedError` while another copy runs.
    """
    if not (partial.is_dir() and all(map(_is_ours, partial.iterdir()))):
        make_folder(partial)
    lock = take_lock(partial / LOCK)
    try:
        for entry in partial.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != LOCK:
                entry.unlink()
    finally:
        let_go(lock)


def _is_ours(entry: Path) -> bool:
    """Whether it is a part of an engine's directory. Deleting one may have been stopped anywhere."""
    if entry.name == INDEX:
        return entry.is_dir() and all(map(is_index_file, entry.iterdir()))
    return entry.name == LOCK or entry.name.startswith(RECORDS)


def _rename(partial: Path, target: Path) -> None:
    # Another copy may have begun since the engine let the directory go. It has the lock then, or has emptied it.
    lock = take_lock(partial / LOCK)
    try:
        if not (partial / RECORDS).exists():
            raise StoreLockedError(f"{target}: another copy to it began; there is one at a time")
        _check_free(target)
        if target.exists():
            target.rmdir()
        if sys.platform != "win32":
            os.rename(partial, target)
    finally:
        let_go(lock)
    if sys.platform == "win32":  # it renames no directory with an open file
        os.rename(partial, target)
    sync(target.parent)


@dataclass(frozen=True)
class _Change:
    """What becomes of the records' vectors and weights."""

    encoders: Mapping[str, Any]
    """The encoders of the new engine."""
    vectors: str
    """``keep`` them, ``drop`` them, or ``make`` them anew."""
    weights: str
    """As `vectors`; or ``fill`` in those of records that have none."""

    @classmethod
    def of(cls, models: Models, options: Mapping[str, Any], where: str) -> _Change:
        encoder = as_encoder(options["encoder"]) if "encoder" in options else models.encoder
        terms: TermEncoder | None = options.get("term_encoder", models.term_encoder)
        vectors = _fate(models.pin, None if encoder is None else pin_of(encoder), "encoder" in options)
        weights = _fate(models.term_pin, None if terms is None else term_pin_of(terms), "term_encoder" in options)
        if vectors == "make" and encoder is not None and models.pin and not getattr(encoder, "encodes", True):
            check_pin(models.pin, pin_of(encoder), where)
        if vectors == "keep" and encoder is None and models.pin is not None:
            encoder = Pinned(**models.pin)
        if weights == "keep" and terms is None and models.term_pin is not None:
            terms = Pinned(**models.term_pin)
        if weights == "make" and models.term_pin is None:
            weights = "fill"  # they are the callers' own
        return cls({"encoder": encoder, "term_encoder": terms}, vectors, weights)

    def apply(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records as the new engine holds them."""
        encoder, terms = self.encoders["encoder"], self.encoders["term_encoder"]
        if self.vectors in ("drop", "make"):
            records = (replace(record, embedding=None) for record in records)
        if self.vectors == "make":
            logger.info("copy: the vectors are made anew by %s", show_pin(pin_of(encoder)))
            records = add_embeddings(records, pin_of(encoder), encoder)
        if self.weights in ("drop", "make"):
            records = (replace(record, weights=None) for record in records)
        if self.weights in ("make", "fill"):
            logger.info("copy: the learned weights are made anew by %s", show_pin(term_pin_of(terms)))
            records = add_weights(records, terms)
        return iter(records)


def _fate(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, given: bool) -> str:
    """What becomes of what one model made, where another is given or none."""
    if not given:
        return "keep"
    if after is None:
        return "drop"
    same = before is not None and all(before.get(part) == after.get(part) for part in ("name", "version", "dimension"))
    return "keep" if same else "make"
