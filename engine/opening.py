"""`OpenIndex`: the memory that an engine searches. It is empty, loaded from a directory, or built in the background."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

from .errors import IndexFileError, ParameterError, StaleIndexError, StorageError
from .storage.index_arrays import SavedIndex
from .storage.index_files import INDEX, IndexDirectory
from .storage.record_store import ChangeRun, RecordStore
from .storage.storage import Storage

logger = logging.getLogger("fanrank")

# How often a reader tries to load the index while checkpoints of a writer make what it loaded stale.
ATTEMPTS = 20

MakeStorage = Callable[[RecordStore | None, IndexDirectory | None], Storage]
"""Makes an empty memory over a record store and its index files, both None for an engine in memory."""


class OpenIndex:
    """The memory of one engine, and how it came to be.

    `make` gives an empty memory with the engine's parameters. After `attach`, the index beside the stored records is
    loaded. Where it is missing or damaged it is built again from the records.
    """

    def __init__(self, make: MakeStorage) -> None:
        self.memory = make(None, None)
        """The memory as it is now. Use `ready` wherever an index that is still being built must be waited for."""
        self.opened: str | None = None
        """How the index came to be: loaded, or built and why. None for an engine in memory."""
        self.error: BaseException | None = None
        """The error by which `fill_behind` failed, or None."""
        self.declares = True
        """Whether filters declare columns, in this memory and in each that takes its place."""
        self._seen = -1
        """The version of the store's file that the last `refresh` read."""
        self._make = make
        self._directory: IndexDirectory | None = None
        self.filler: threading.Thread | None = None
        """The thread that fills the memory. None once `ready` has seen its end: `memory` is then what it returns."""
        self._scanning = False
        self._judged = threading.Event()  # whether the index is loaded or built is known

    def attach(self, store: RecordStore, path: Path, owner: str) -> None:
        """Serve the records of a directory from now on; `fill` or `fill_behind` brings in what it holds."""
        self.memory.store = store
        if store.loss is not None:
            logger.warning("%s: opened although acknowledged changes are missing: %s", path, store.loss.reason)
        self._directory = IndexDirectory(path / INDEX, owner=owner)

    def fill(self, progress: bool = False) -> None:
        """Bring the index to the store's last write: load it, or build it where it cannot be loaded."""
        store, directory = self.memory.store, self._directory
        assert store is not None
        assert directory is not None
        # The index files are the writer's. A reader merges in the background too, and must not write there.
        written = None if store.read_only else directory
        for attempt in range(ATTEMPTS):
            fresh = self._make(store, written)
            self.opened = "built: there were no index files"
            try:
                if store.loss is not None:
                    # The index may hold what the records lack.
                    self.opened = "built: the records lack acknowledged changes, which was accepted"
                elif store.sequence or directory.exists():
                    saved = directory.load()
                    _check_parameters(saved, fresh)
                    fresh.restore(saved)
                    self.opened = "loaded"
            except (IndexFileError, ParameterError) as error:
                if directory.exists():
                    self.opened = f"built: {error}"
            if self.opened != "loaded" and store.sequence:
                self._scan()
            try:
                replay(fresh, store, progress)
            except StaleIndexError as error:
                if store.read_only and attempt + 1 < ATTEMPTS:
                    continue  # the writer's next checkpoint will come soon
                fresh = self._make(store, written)
                self.opened = f"built: {error}"
                self._scan()
                replay(fresh, store, progress)
            break
        if written is not None and self.opened != "loaded":
            # A stale manifest must not look valid once the counter has caught up with it.
            written.clear()
        self.memory = fresh
        # Read after the assignment: whoever turned it off before, or turns it off now, reaches this memory.
        fresh.declares = self.declares
        records = sum(snapshot.size for snapshot in fresh.snapshots.values())
        how = "loaded" if self.opened == "loaded" else "built"
        logger.info("opened %s: %d records, index %s", directory.root.parent, records, how)
        fresh.wake()

    def fill_behind(self) -> None:
        """As `fill`, in a background thread. `building` says whether it still runs, `error` by what it failed."""
        self.filler = threading.Thread(target=self._fill_and_keep_error, name="fanrank-open", daemon=True)
        self.filler.start()

    def _fill_and_keep_error(self) -> None:
        try:
            self.fill()
        except BaseException as error:
            self.error = error
        finally:
            self._scanning = False
            self._judged.set()

    def _scan(self) -> None:
        """Let searches scan the records from now on, as it may take minutes until there is an index."""
        self._scanning = True
        self._judged.set()

    @property
    def building(self) -> bool:
        """Whether the background thread still loads or builds the index."""
        return (thread := self.filler) is not None and thread.is_alive()

    def scans(self) -> bool:
        """Whether a search scans the records, as the index is being built from them in the background.

        Waits while index files are loaded: what is found must not depend on how long that takes.
        """
        while self.building and not self._judged.wait(1.0):
            pass  # a child that was forked meanwhile has the event, but no thread that sets it
        return self._scanning and self.building

    def ready(self) -> Storage:
        """The memory, once it is filled. Raises `StorageError` where that failed."""
        thread = self.filler
        if thread is not None:
            thread.join()
            if self.error is not None:
                # The error's message may name a record, and the caller may be another tenant.
                raise StorageError(f"the index could not be built ({type(self.error).__name__})") from self.error
            self.filler = None
        return self.memory

    def behind(self) -> bool:
        """Whether the writer of a directory that was opened for reading has committed since the last `refresh`."""
        store = self.memory.store
        return store is not None and store.read_only and store.version() != self._seen

    def refresh(self) -> None:
        """Catch up with the writer of a directory that was opened for reading."""
        store = self.ready().store
        if store is None or not store.read_only:
            return
        version = store.version()
        self._refresh(store)
        if self.memory.learned is not None:
            self.memory.learned.restore(store)
        self._seen = version

    def _refresh(self, store: RecordStore) -> None:
        try:
            replay(self.memory, store, False)
            self.memory.wake()
        except StaleIndexError:
            self.fill()

    def close(self) -> None:
        """Bring the index files up to date and release the directory."""
        thread = self.filler
        if thread is not None:
            thread.join()
            if self.error is not None and self.memory.store is not None:
                self.memory.store.close()
                return
        self.ready().close()


def replay(memory: Storage, store: RecordStore, progress: bool) -> None:
    """Apply the changes that the store holds and the memory does not."""
    bar = None
    if shows_progress(progress):
        from tqdm import tqdm  # a tenth of the import of fanrank, for who looks at a terminal

        bar = tqdm(desc="indexing", unit=" records")

    def counted() -> Iterator[ChangeRun]:
        for run in store.changes_after(memory.sequence):
            yield run
            if bar is not None:
                bar.update(len(run.added))

    with nullcontext() if bar is None else bar:
        memory.replay(counted(), store.sequence)


def shows_progress(progress: bool) -> bool:
    """Whether to make a progress bar.

    A bar takes a lock that forked processes share, even where it shows nothing. A process that is killed while it holds
    the lock never gives it back, so none is made where nobody would see it.
    """
    return progress and sys.stderr.isatty()


def _check_parameters(saved: SavedIndex, memory: Storage) -> None:
    memory.analyzer.check_stored(saved.analyzer)
    stored = (dict(saved.parameters), dict(saved.columns))
    if stored != (memory.bm25.to_dict(), memory.schema.declared()):
        raise ParameterError("the index files were made with other parameters than the records")
