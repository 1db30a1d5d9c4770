"""An index as a directory of arrays under one JSON manifest.

Every array is a ``.npy`` file; nothing is pickled. Large ones of an engine's directory are packed, and an
index that was saved alone has plain ones, so that any tool reads them. Segments are written in *parts*. A part is a
few files, which hold the arrays of its segments one after another. The array ``segments`` says which segments the index
consists of now, and the array ``deleted`` which of their documents are deleted. A save writes new files beside the old
ones and then replaces the manifest in one step. So a reader sees either the old index or the new one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from ..errors import DamagedIndexError, ForeignIndexError, IndexFileError, NewerFormatError, StorageError
from ..index.bm25 import BM25
from ..index.column_names import LONGEST_NAME
from ..index.columns import Strings, needs_json, stable_hash
from ..index.segment import NESTED, Segment
from .failpoints import reach
from .index_arrays import (
    BITS,
    PACKED_LEAST,
    Array,
    SavedIndex,
    head_arrays,
    packed,
    part_arrays,
    segments_from,
    snapshot_from,
    string_arrays,
    string_columns,
    unpacked,
)
from .row_codec import RECORDS
from .sync import sync

FORMAT = "fanrank index"
VERSION = 8
# An index has the lowest version that can hold it, so that versions of fanrank that do not know the rest can read it:
# without packed arrays, without columns of JSON values or of payload keys, without times of expiry, without entities,
# and without vectors and learned weights.
JSON_VERSION, EXPIRY_VERSION, ENTITIES_VERSION, EVIDENCE_VERSION, PLAIN_VERSION = 6, 5, 4, 3, 2
MANIFEST = "manifest.json"
OWNER, SHARDS = "owner.sqlite", "shards.json"
"""The files by which a directory is a sharded memory: that of the present format, and of the first one."""
INDEX = "index"
"""The folder of the index files in an engine's directory."""

# The names of the files that a save writes besides the manifest, and may delete.
_OURS = re.compile(r"\w+\.[0-9a-f]{8}\.npy|manifest\.json\.[0-9a-f]{8}")
# How often a load is tried when saves replace the index while it reads.
LOAD_ATTEMPTS = 20
# A part is dropped, and its segments are written again, when no more than this share of its weight is in use.
USED_SHARE = 0.5
# With more parts than this, the smaller half is written again as one part.
MAX_PARTS = 48

# Settings that only an index with vectors or learned weights has.
PINNED = {"encoder", "term_encoder"}

# Bytes of the look-up of one id, which a packed index leaves out: a hash, and its place in their order.
ID_BYTES = 12

T = TypeVar("T")


def is_index_file(path: Path) -> bool:
    """Whether a save may have written the file, by its name."""
    return path.name == MANIFEST or _OURS.fullmatch(path.name) is not None


def _weight(segment: Segment) -> int:
    """The weight of a segment in its part: its postings, its nested segments' postings, and its vectors' numbers."""
    nested = sum(segment.nested_postings(name) for name in NESTED)
    return segment.postings + nested + (0 if segment.vectors is None else segment.vectors.matrix.size)


class IndexDirectory:
    """A directory that holds an index. It knows which segments the directory holds already. One thread at a time."""

    def __init__(self, path: str | os.PathLike[str], owner: str | None = None) -> None:
        """`owner` names the records that the index covers. Files of another owner count as damaged."""
        self.root = Path(path)
        self.owner = owner
        self._parts: list[dict[str, Any]] = []
        self._strings: list[dict[str, Any]] = []
        self._known: weakref.WeakKeyDictionary[Segment, tuple[str, int]] = weakref.WeakKeyDictionary()
        self._saved: dict[str, int] = {}  # strings on disk, by column
        self._numbering: int | None = None  # of these strings

    def exists(self) -> bool:
        return (self.root / MANIFEST).exists()

    def covers(self) -> tuple[str | None, int] | None:
        """(the owner, the last change of its store that the index holds), as the manifest says; None without one."""
        try:
            manifest = _read_manifest(self.root)
            return manifest.get("owner"), int(manifest["sequence"])
        except (IndexFileError, OSError, KeyError, TypeError, ValueError):
            return None

    def clear(self) -> None:
        """Make the directory hold no index. Raises `StorageError`."""
        try:
            (self.root / MANIFEST).unlink(missing_ok=True)
            if self.root.exists():
                sync(self.root)
        except OSError as error:
            raise StorageError(f"{self.root}: cannot be written: {error.strerror or error}") from error
        self._parts, self._strings, self._saved = [], [], {}
        self._known.clear()

    def save(self, index: SavedIndex) -> None:
        """Make the directory hold `index`. Raises `ForeignIndexError`, `StorageError`; the old index then stays."""
        root = self.root
        try:
            root.mkdir(parents=True, exist_ok=True)
            if not (root / MANIFEST).exists() and not all(_OURS.fullmatch(file.name) for file in root.iterdir()):
                if (root / RECORDS).exists():
                    raise ForeignIndexError(
                        f"{root}: is an engine's directory; add records to it with Engine.open or `fanrank add`, or "
                        "save the index in a new directory"
                    )
                raise ForeignIndexError(f"{root}: holds other files; choose an empty or new directory")
            if (root / MANIFEST).exists():
                _read_manifest(root)
            self._write(index)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"{root}: cannot be written: {error.strerror or error}") from error

    def _write(self, index: SavedIndex) -> None:
        root, tag, packs = self.root, secrets.token_hex(4), self.owner is not None
        segments = [segment for snapshot in index.namespaces.values() for segment in snapshot.segments]
        # Segments of another numbering are new ones, and no part holds them. Strings are all written again.
        goes_on = index.numbering == self._numbering
        strings, on_disk = (list(self._strings), self._saved) if goes_on else ([], {})
        parts = self._select_parts(segments)
        tags = {part["tag"] for part in parts}
        new = [segment for segment in segments if self._known.get(segment, ("", 0))[0] not in tags]
        columns = {"vocabulary": index.terms, **{f"values_{n}": values for n, values in index.categories.items()}}
        if index.weight_terms:
            columns["weight_terms"] = index.weight_terms
        if index.entity_terms:
            columns["entity_terms"] = index.entity_terms
        try:
            if new:
                lookup = not packs or ID_BYTES * sum(segment.size for segment in new) < PACKED_LEAST
                entries = _write_arrays(root, f"part.{tag}", part_arrays(new, lookup=lookup), packs)
                weight, postings = sum(map(_weight, new)), sum(segment.postings for segment in new)
                part = {"tag": tag, "postings": postings, "weight": weight, "arrays": entries}
                parts.append(part)
                reach("checkpoint.part")
            grown = {name: column[on_disk.get(name, 0) :] for name, column in columns.items()}
            if any(grown.values()):
                written = {name: Strings.of(column) for name, column in grown.items() if column}
                strings.append(_write_arrays(root, f"strings.{tag}", string_arrays(written), packs))
            places = {**self._known, **{segment: (tag, row) for row, segment in enumerate(new)}}
            heads = head_arrays(index, places, [part["tag"] for part in parts])
            entries = _write_arrays(root, f"head.{tag}", heads, packs)
            manifest = {
                "format": FORMAT,
                "version": _version_of(index, segments),
                "analyzer": index.analyzer,
                "parameters": dict(index.parameters),
                "columns": dict(index.columns),
                "settings": dict(index.settings),
                "documents": sum(snapshot.size for snapshot in index.namespaces.values()),
                "owner": self.owner,
                "sequence": index.sequence,
                "head": entries,
                "lengths": {name: len(column) for name, column in columns.items()},
                "strings": strings,
                "parts": parts,
            }
            if _is_packed(manifest):
                manifest["version"] = VERSION
            manifest["checksum"] = _manifest_checksum(manifest)
            temporary = root / f"{MANIFEST}.{tag}"
            with temporary.open("w", encoding="utf-8") as handle:
                json.dump(manifest, handle, indent=1, ensure_ascii=False)
                handle.flush()
                os.fsync(handle.fileno())
            reach("checkpoint.manifest")
            os.replace(temporary, root / MANIFEST)
        except BaseException:
            _remove(root.glob(f"*.{tag}*"))
            raise
        reach("checkpoint.replaced")
        sync(root)
        self._parts, self._strings = parts, strings
        for row, segment in enumerate(new):
            self._known[segment] = (tag, row)
        self._saved = {name: len(column) for name, column in columns.items()}
        self._numbering = index.numbering
        named = {entry["file"] for entries in _entries(manifest) for entry in entries.values()}
        _remove(file for file in root.iterdir() if _OURS.fullmatch(file.name) and file.name not in named)
        reach("checkpoint.swept")

    def _select_parts(self, segments: Sequence[Segment]) -> list[dict[str, Any]]:
        """The parts that stay; the segments of the others are written again."""
        used: Counter[str] = Counter()
        for segment in segments:
            if segment in self._known:
                used[self._known[segment][0]] += _weight(segment) + 1
        # Parts that were written before there were vectors hold postings alone and have no weight.
        weights = {part["tag"]: int(part.get("weight", part["postings"])) for part in self._parts}
        kept = [part for part in self._parts if used[part["tag"]] > USED_SHARE * weights[part["tag"]]]
        if len(kept) > MAX_PARTS:
            large = sorted(kept, key=lambda part: -weights[part["tag"]])[: MAX_PARTS // 2]
            kept = [part for part in kept if part in large]
        return kept

    def load(self, *, verify: bool = True) -> SavedIndex:
        """Read the index, with its arrays memory-mapped. `verify` checks every file against its checksum.

        Raises `ForeignIndexError`, `NewerFormatError`, `DamagedIndexError`, `StorageError`.
        """
        root = self.root
        attempts = 0
        while True:
            manifest = _name_failures(root, partial(_read_manifest, root))
            if self.owner is not None and manifest.get("owner") != self.owner:
                _damaged_error(root, "of other records than those beside it")
            try:
                return _name_failures(root, partial(self._load, manifest, verify))
            except StorageError:
                # The files may be gone because a save has replaced the index meanwhile. Then the new index is read.
                attempts += 1
                replaced = _name_failures(root, partial(_read_manifest, root))["checksum"] != manifest["checksum"]
                if not replaced or attempts == LOAD_ATTEMPTS:
                    raise

    def _load(self, manifest: Mapping[str, Any], verify: bool) -> SavedIndex:
        def read(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Array]:
            # Plain arrays on the same memory: slicing a memmap object takes several times as long for a small slice.
            return {name: np.asarray(_read_array(self.root, entry, verify)) for name, entry in entries.items()}

        strings: dict[str, list[str]] = {}
        for entries in manifest["strings"]:
            for name, column in string_columns(read(entries)).items():
                strings.setdefault(name, []).extend(column.tolist())
        lengths = {name: len(strings.get(name, ())) for name in {*strings, *manifest["lengths"]}}
        if lengths != manifest["lengths"]:
            _damaged_error(self.root, "not the strings that the manifest counts")
        parts = [segments_from(read(part["arrays"])) for part in manifest["parts"]]
        head = read(manifest["head"])
        segments: dict[int, list[Segment]] = {}
        deleted: dict[tuple[int, int], list[int]] = {}
        rows: list[tuple[int, int]] = []
        for number, part, row in head["segments"].tolist():
            namespace = segments.setdefault(number, [])
            rows.append((number, len(namespace)))
            namespace.append(parts[part][row])
            self._known[namespace[-1]] = (manifest["parts"][part]["tag"], row)
        for segment, document in head["deleted"].tolist():
            deleted.setdefault(rows[segment], []).append(document)
        bm25 = BM25(**manifest["parameters"])
        names = string_columns(head)["namespaces"].tolist()
        self._parts, self._strings = list(manifest["parts"]), list(manifest["strings"])
        self._saved = {name: len(column) for name, column in strings.items()}
        saved = SavedIndex(
            analyzer=manifest["analyzer"],
            parameters=manifest["parameters"],
            columns=manifest["columns"],
            terms=strings.get("vocabulary", []),
            categories={
                name.removeprefix("values_"): column for name, column in strings.items() if name.startswith("values_")
            },
            namespaces={
                name: snapshot_from(
                    segments.get(number, []),
                    {s: d for (n, s), d in deleted.items() if n == number} if deleted else {},
                    bm25,
                )
                for number, name in enumerate(names)
            },
            sequence=manifest["sequence"],
            settings=manifest.get("settings", {}),  # the first version 2 had none
            weight_terms=strings.get("weight_terms", []),
            entity_terms=strings.get("entity_terms", []),
        )
        self._numbering = saved.numbering
        return saved


def _version_of(index: SavedIndex, segments: Sequence[Segment]) -> int:
    """The lowest version that can hold the index in plain arrays."""
    if needs_json(index.columns):
        return JSON_VERSION
    if any(len(segment.expiries) for segment in segments):
        return EXPIRY_VERSION
    if index.entity_terms:
        return ENTITIES_VERSION
    if PINNED & set(index.settings) or any(s.vectors is not None or s.learned is not None for s in segments):
        return EVIDENCE_VERSION
    return PLAIN_VERSION


def save(path: str | os.PathLike[str], index: SavedIndex) -> None:
    """Make the directory `path` hold `index`. All of it is written."""
    IndexDirectory(path).save(index)


def load(path: str | os.PathLike[str], *, verify: bool = True) -> SavedIndex:
    """As `IndexDirectory.load`."""
    return IndexDirectory(path).load(verify=verify)


def _entries(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [manifest["head"], *manifest["strings"], *(part["arrays"] for part in manifest["parts"])]


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _is_packed(manifest: Mapping[str, Any]) -> bool:
    packed_arrays = any("packing" in entry for entries in _entries(manifest) for entry in entries.values())
    return packed_arrays or not all("id_order" in part["arrays"] for part in manifest["parts"])


def _write_arrays(root: Path, prefix: str, arrays: Mapping[str, Array], packs: bool) -> dict[str, dict[str, Any]]:
    """Write each array to a file, named by the prefix, the array's name and the prefix's tag."""
    kind, tag = prefix.split(".")
    return {
        name: _write_array(root / f"{kind}_{_file_name(name)}.{tag}.npy", array, packs)
        for name, array in arrays.items()
    }


def _file_name(name: str) -> str:
    """The name of an array as a part of a file's name. The manifest holds the name itself."""
    if re.fullmatch(r"\w+", name) and len(name.encode()) <= LONGEST_NAME + 20:
        return name
    # A column may be any key of a payload.
    return f"{re.sub(r'[^0-9A-Za-z]+', '_', name)[:40]}_{stable_hash(name):016x}"


def _write_array(path: Path, array: Array, packs: bool) -> dict[str, Any]:
    bits = packed(array) if packs else None
    with path.open("wb") as handle:
        np.save(handle, np.ascontiguousarray(array) if bits is None else bits, allow_pickle=False)
        handle.flush()
        os.fsync(handle.fileno())
    entry = {
        "file": path.name,
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "bytes": path.stat().st_size,
        "crc32": _file_checksum(path),
    }
    return entry if bits is None else {**entry, "packing": BITS}


def _file_checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as handle:
        while block := handle.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _manifest_checksum(manifest: Mapping[str, Any]) -> int:
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _name_failures(root: Path, read: Callable[[], T]) -> T:
    """What `read` returns. Every failure of the files becomes an error that names `root`."""
    try:
        return read()
    except IndexFileError:
        raise
    except FileNotFoundError as error:
        # It was there a moment ago: a save has replaced the index meanwhile.
        _damaged_error(Path(error.filename or root), "missing")
    except OSError as error:
        raise StorageError(f"{root}: cannot be read: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        _damaged_error(root, f"its parts do not fit together ({type(error).__name__}: {error})")


def _damaged_error(path: Path, what: str) -> NoReturn:
    raise DamagedIndexError(f"{path}: {what}; restore the index from a copy or build it again from the records")


def _read_manifest(root: Path) -> dict[str, Any]:
    path = root / MANIFEST
    if not root.is_dir():
        raise ForeignIndexError(f"{root}: no such directory" if not root.exists() else f"{root}: not a directory")
    if not path.exists():
        check_one(root)
        raise ForeignIndexError(f"{root}: not a fanrank index (it has no {MANIFEST})")
    try:
        manifest = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        _damaged_error(path, "not valid JSON")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ForeignIndexError(f"{path}: not the manifest of a fanrank index")
    version = manifest.get("version")
    if isinstance(version, int) and version > VERSION:
        raise NewerFormatError(
            f"{path}: written in format {version}, and this fanrank reads up to {VERSION}; upgrade fanrank"
        )
    if manifest.get("checksum") != _manifest_checksum(manifest):
        _damaged_error(path, "altered since it was written")
    return manifest


def _read_array(root: Path, entry: Mapping[str, Any], verify: bool) -> Array:
    path = root / entry["file"]
    if path.parent != root:
        _damaged_error(path, "a file name that leaves the directory")
    if not path.exists():
        _damaged_error(path, "missing")
    if path.stat().st_size != entry["bytes"]:
        _damaged_error(path, f"{path.stat().st_size} bytes instead of {entry['bytes']}")
    if verify and _file_checksum(path) != entry["crc32"]:
        _damaged_error(path, "altered since it was written (checksum differs)")
    empty = 0 in entry["shape"]
    # A Path would be resolved anew for each array.
    array: Array = np.load(str(path), mmap_mode=None if empty else "r", allow_pickle=False)
    if "packing" in entry:
        array = unpacked(array, entry["packing"], entry["dtype"], entry["shape"])
    if array.dtype.str != entry["dtype"] or list(array.shape) != entry["shape"]:
        _damaged_error(path, "not the array that the manifest names")
    return array


def is_sharded(root: Path) -> bool:
    """Whether a directory is a sharded memory."""
    return (root / OWNER).exists() or (root / SHARDS).exists()


def check_one(root: Path) -> None:
    """Raise `ForeignIndexError` for the directory of a sharded memory, which one engine cannot open."""
    if is_sharded(root):
        raise ForeignIndexError(
            f"{root}: is a sharded memory, and one engine cannot open it; open it with fanrank.ShardedEngine.open, or "
            "see `fanrank shards`"
        )
