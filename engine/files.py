"""An index as a directory of plain arrays under one JSON manifest.

Every array is a ``.npy`` file that any tool can read; nothing is ever pickled. The arrays of all segments stand one
after another in the same few files, and ``segments`` says where each begins. A save writes new files beside the old
ones and then replaces the manifest, in one step: whoever opens the directory sees the old index or the new one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from .columns import ABSENT, Ids, Strings
from .errors import DamagedIndexError, ForeignIndexError, IndexFileError, NewerFormatError, StorageError
from .segment import Segment

FORMAT = "fanrank index"
VERSION = 1
MANIFEST = "manifest.json"

# What a save writes besides the manifest, and so may take away.
_OURS = re.compile(r"[a-z_]+\.[0-9a-f]{8}\.npy|manifest\.json\.[0-9a-f]{8}")
# How often a load starts afresh when a save replaces the index under it.
LOAD_ATTEMPTS = 20

Array = npt.NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True)
class SavedIndex:
    """Everything that an engine needs to be as it was."""

    analyzer: str
    parameters: Mapping[str, Any]
    terms: Sequence[str]
    categories: Mapping[str, Sequence[str]]
    namespaces: Mapping[str, tuple[Segment, ...]]


def save(path: str | os.PathLike[str], index: SavedIndex) -> None:
    """Write `index` to the directory `path`. Raises `ForeignIndexError`, `StorageError`."""
    root = Path(path)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not (root / MANIFEST).exists() and not all(_OURS.fullmatch(file.name) for file in root.iterdir()):
            raise ForeignIndexError(f"{root}: holds other files; choose an empty or new directory")
        if (root / MANIFEST).exists():
            _read_manifest(root)
        _write(root, index)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{root}: cannot be written: {error.strerror or error}") from error


def _write(root: Path, index: SavedIndex) -> None:
    tag = secrets.token_hex(4)
    entries = {}
    try:
        for name, array in _arrays(index).items():
            entries[name] = _write_array(root / f"{name}.{tag}.npy", array)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "analyzer": index.analyzer,
            "parameters": dict(index.parameters),
            "categories": sorted(index.categories),
            "documents": sum(s.size for segments in index.namespaces.values() for s in segments),
            "arrays": entries,
        }
        manifest["checksum"] = _manifest_checksum(manifest)
        temporary = root / f"{MANIFEST}.{tag}"
        with temporary.open("w", encoding="utf-8") as handle:
            json.dump(manifest, handle, indent=1, ensure_ascii=False)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, root / MANIFEST)
    except BaseException:
        _remove(root.glob(f"*.{tag}*"))
        raise
    _sync(root)
    kept = {entry["file"] for entry in entries.values()}
    _remove(file for file in root.iterdir() if _OURS.fullmatch(file.name) and file.name not in kept)


def _sync(folder: Path) -> None:
    """Make the folder's entries durable, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _arrays(index: SavedIndex) -> dict[str, Array]:
    segments = [(number, s) for number, own in enumerate(index.namespaces.values()) for s in own]
    fields = len(index.parameters["fields"])

    def joined(parts: Sequence[Array], empty: Array, axis: int = 0) -> Array:
        return np.concatenate(parts, axis=axis) if parts else empty

    table = np.array([[n, s.first, s.size, len(s.terms), s.postings] for n, s in segments], dtype=np.int64)
    ids = [s.ids for _, s in segments]
    arrays: dict[str, Array] = {
        "segments": table.reshape(-1, 5),
        "terms": joined([s.terms for _, s in segments], np.zeros(0, dtype=np.int32)),
        "offsets": joined([s.offsets for _, s in segments], np.zeros(0, dtype=np.int64)),
        "documents": joined([s.documents for _, s in segments], np.zeros(0, dtype=np.int32)),
        "frequencies": joined([s.frequencies for _, s in segments], np.zeros((fields, 0), dtype=np.uint8), axis=1),
        "lengths": joined([s.lengths for _, s in segments], np.zeros((fields, 0), dtype=np.int32), axis=1),
        "id_hashes": joined([i.hashes for i in ids], np.zeros(0, dtype=np.uint64)),
        "id_order": joined([i.order for i in ids], np.zeros(0, dtype=np.int32)),
    }
    if any(s.times is not None for _, s in segments):
        arrays["times"] = np.concatenate([np.full(s.size, np.nan) if s.times is None else s.times for _, s in segments])
    for name in {name for _, s in segments for name in s.categories}:
        arrays[f"category_{name}"] = np.concatenate(
            [s.categories.get(name, np.full(s.size, ABSENT, dtype=np.int32)) for _, s in segments]
        )
    columns = {
        "ids": Strings.concatenate([i.strings for i in ids]) if ids else Strings.of(()),
        "vocabulary": Strings.of(index.terms),
        "namespaces": Strings.of(index.namespaces),
        **{f"values_{name}": Strings.of(values) for name, values in index.categories.items()},
    }
    for name, column in columns.items():
        arrays[f"{name}_block"], arrays[f"{name}_offsets"] = column.block, column.offsets
    return arrays


def _write_array(path: Path, array: Array) -> dict[str, Any]:
    with path.open("wb") as handle:
        np.save(handle, np.ascontiguousarray(array), allow_pickle=False)
        handle.flush()
        os.fsync(handle.fileno())
    return {
        "file": path.name,
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "bytes": path.stat().st_size,
        "crc32": _file_checksum(path),
    }


def _file_checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as handle:
        while block := handle.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _manifest_checksum(manifest: Mapping[str, Any]) -> int:
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def load(path: str | os.PathLike[str], *, verify: bool = True) -> SavedIndex:
    """Read the index at `path`, its arrays memory-mapped; `verify` checks every file against its checksum.

    Raises `ForeignIndexError`, `NewerFormatError`, `DamagedIndexError`, `StorageError`.
    """
    root = Path(path)
    attempts = 0
    while True:
        manifest = _readable(root, partial(_read_manifest, root))
        try:
            return _readable(root, partial(_load, root, manifest, verify))
        except StorageError:
            # The files may be gone because a save has replaced the index meanwhile; then the new one is there.
            attempts += 1
            replaced = _readable(root, partial(_read_manifest, root))["checksum"] != manifest["checksum"]
            if not replaced or attempts == LOAD_ATTEMPTS:
                raise


def _load(root: Path, manifest: Mapping[str, Any], verify: bool) -> SavedIndex:
    arrays = {name: _read_array(root, entry, verify) for name, entry in manifest["arrays"].items()}
    return _assemble(manifest, arrays)


def _readable(root: Path, read: Callable[[], T]) -> T:
    """What `read` returns, with every failure of the files named."""
    try:
        return read()
    except IndexFileError:
        raise
    except OSError as error:
        raise StorageError(f"{root}: cannot be read: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        _damaged(root, f"its parts do not fit together ({type(error).__name__}: {error})")


def _damaged(path: Path, what: str) -> NoReturn:
    raise DamagedIndexError(f"{path}: {what}; restore the index from a copy or build it again from the records")


def _read_manifest(root: Path) -> dict[str, Any]:
    path = root / MANIFEST
    if not root.is_dir():
        raise ForeignIndexError(f"{root}: no such directory" if not root.exists() else f"{root}: not a directory")
    if not path.exists():
        raise ForeignIndexError(f"{root}: not a fanrank index (it has no {MANIFEST})")
    try:
        manifest = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        _damaged(path, "not valid JSON")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ForeignIndexError(f"{path}: not the manifest of a fanrank index")
    version = manifest.get("version")
    if isinstance(version, int) and version > VERSION:
        raise NewerFormatError(
            f"{path}: written in format {version}, and this fanrank reads up to {VERSION}; upgrade fanrank"
        )
    if manifest.get("checksum") != _manifest_checksum(manifest):
        _damaged(path, "altered since it was written")
    return manifest


def _read_array(root: Path, entry: Mapping[str, Any], verify: bool) -> Array:
    path = root / entry["file"]
    if path.parent != root:
        _damaged(path, "a file name that leaves the directory")
    if not path.exists():
        _damaged(path, "missing")
    if path.stat().st_size != entry["bytes"]:
        _damaged(path, f"{path.stat().st_size} bytes instead of {entry['bytes']}")
    if verify and _file_checksum(path) != entry["crc32"]:
        _damaged(path, "altered since it was written (checksum differs)")
    empty = 0 in entry["shape"]
    array: Array = np.load(path, mmap_mode=None if empty else "r", allow_pickle=False)
    if array.dtype.str != entry["dtype"] or list(array.shape) != entry["shape"]:
        _damaged(path, "not the array that the manifest names")
    return array


def _assemble(manifest: Mapping[str, Any], arrays: Mapping[str, Array]) -> SavedIndex:
    def strings(name: str) -> list[str]:
        return Strings(arrays[f"{name}_block"], arrays[f"{name}_offsets"]).tolist()

    names = strings("namespaces")
    namespaces: dict[str, list[Segment]] = {name: [] for name in names}
    document = term = posting = 0
    # Views of plain arrays: a memmap object would make every small slice several times slower.
    plain = {name: np.asarray(array) for name, array in arrays.items()}
    categories = {name.removeprefix("category_"): a for name, a in plain.items() if name.startswith("category_")}
    for segment_number, (namespace, first, size, terms, postings) in enumerate(plain["segments"].tolist()):
        own = slice(document, document + size)
        listed = slice(posting, posting + postings)
        namespaces[names[namespace]].append(
            Segment(
                first=first,
                terms=plain["terms"][term : term + terms],
                # Each segment's offsets have one entry more than it has terms.
                offsets=plain["offsets"][term + segment_number : term + segment_number + terms + 1],
                documents=plain["documents"][listed],
                frequencies=plain["frequencies"][:, listed],
                lengths=plain["lengths"][:, own],
                ids=Ids(
                    Strings(plain["ids_block"], plain["ids_offsets"][document : document + size + 1]),
                    plain["id_hashes"][own],
                    plain["id_order"][own],
                ),
                times=plain["times"][own] if "times" in plain else None,
                categories={name: codes[own] for name, codes in categories.items()},
            )
        )
        document, term, posting = document + size, term + terms, posting + postings
    return SavedIndex(
        analyzer=manifest["analyzer"],
        parameters=manifest["parameters"],
        terms=strings("vocabulary"),
        categories={name: strings(f"values_{name}") for name in manifest["categories"]},
        namespaces={name: tuple(segments) for name, segments in namespaces.items()},
    )
