"""Opens the shards of a memory, and checks that they belong together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...engine.encoders.pins import Models
from ...engine.engine import Engine
from ...engine.errors import (
    DamagedStoreError,
    FanrankError,
    ForeignIndexError,
    ParameterError,
    ShardVersionError,
    StoreLockedError,
)
from ...engine.signatures import EngineOptions
from ...engine.storage.backup import check_apart
from ...engine.storage.index_files import OWNER, SHARDS
from ...engine.storage.lock import LOCK, let_go, take_lock
from ...engine.storage.row_codec import RECORDS
from ...engine.storage.sync import sync
from ..coordinator.columns import settle_columns
from ..moves.moves import MovingCoordinator
from ..processes.links import Link, LocalLink, call_all, close_all, deadline_at
from ..protocol.messages import Description, own_version
from ..protocol.order import with_order, without_order
from ..protocol.owner import OwnerFile
from ..protocol.placement import Placement
from ..replicas.replicas import ReplicatedLink
from ..replicas.whole_copies import MODELLED, WHOLE, WholeCopies
from ..shard.shard import Setup, Shard
from .importing import IMPORTING, Source, check_importing, options_of
from .older import INTENTS, carry_over, forget_older, read_older

OPENING = 600.0
"""Seconds that shards have to start, which may build their indexes anew."""

Start = Callable[[Setup], Link]
"""Starts a shard."""

Settings = Mapping[str, "int | None"]
"""What a caller says of `Placement`: ``split_at`` and ``whole_at``; None: as it is kept."""


@dataclass(eq=False)
class Opened:
    """A memory that is open: its coordinator, an empty engine with its parameters, and what is held meanwhile."""

    coordinator: MovingCoordinator
    template: Engine
    release: Callable[[], None]
    opened: tuple[str | None, ...]
    begin: Callable[[int], Link]
    """Starts a further shard with this number."""
    source: Source | None = None
    """The engine's directory whose records are to be brought in."""


def start_local(setup: Setup) -> Link:
    """A shard in this process."""
    return LocalLink(Shard(setup))


def open_memory(
    folder: Path,
    shards: int | None,
    start: Start,
    options: EngineOptions,
    *,
    backend: str | None,
    storage: Path | None,
    settings: Settings,
    deadline: float,
    source: Path | None = None,
    replicas: int = 1,
    background: bool = True,
) -> Opened:
    """The memory whose table lies in `folder`, which is made if it is not there, over shards that `start` starts.

    `storage` is the folder of the shards' directories, on their own machines; None: beside the table. `source` is the
    engine's directory whose records it is to hold. `background` is that of `ReplicatedLink`. Raises as
    `ShardedEngine.open`.
    """
    links: list[Link] = []
    taken: Source | None = None
    with ExitStack() as undo:
        if source is not None:
            taken = Source(source)
            undo.callback(taken.close)
            options = taken.options(options)
            check_apart(source, folder)
        make_folder(folder)
        lock = _take_lock(folder)
        undo.callback(let_go, lock)
        owner = OwnerFile.open(folder)
        undo.callback(lambda: None if owner is None else _close(owner))
        older = read_older(folder) if owner is None else None
        new = owner is None and older is None
        if owner is None and older is None:
            if shards is None:
                raise ParameterError(f"{folder}: holds nothing yet; say how many shards it is to have, as in shards=4")
            placement, kept = Placement(shards), dict[str, Any]()
            if taken is not None:
                kept[IMPORTING] = taken.moment
            # Options that cannot be kept are refused before anything is written.
            Engine(backend=backend, **options)
        else:
            known = owner or older
            assert known is not None
            placement, kept = known.placement, dict(known.settings)
            check_importing(folder, kept, taken)
            if shards is not None and shards != placement.shards:
                raise ParameterError(
                    f"{folder}: has {placement.shards} shards, not {shards}; leave shards out, or "
                    "add some with add_shards"
                )
        models = Models(options.get("encoder"), options.get("term_encoder"))
        own = shard_options(options, new=new)
        root = folder if storage is None else storage
        undo.callback(close_all, links)
        for number in range(placement.shards):
            path = str(root / folder_of(number))
            links.append(start(Setup(number, path, own, models.pin, models.term_pin, not new, backend)))
        described: dict[int, Description] = call_all(links, deadline_at(OPENING), "describe")
        check_versions(described)
        stores = [described[number].store for number in range(placement.shards)]
        check_stores(folder, stores, kept.get("stores"))
        if new:
            check_empty(folder, described)
        if older is not None:
            placement = carry_over(older, links, deadline_at(OPENING))
        columns = settle_columns(links, {number: each.config["columns"] for number, each in described.items()})
        config = {**described[0].config, "columns": columns}
        template = make_template(config, options, models, folder, backend)
        kept = {**kept, "stores": stores}
        if owner is None:
            owner = OwnerFile.make(folder, placement, kept)
        forget_older(folder)
        described = settle_parts(owner, links, described)
        owner.keep(placed(owner.placement, settings), kept)
        check_strays(owner, links)
        shards_options = shard_options(template_options(config, options), new=True)
        begin = Begin(start, root, shards_options, template, backend)
        coordinator, begin_more = coordinate(owner, links, begin, deadline, replicas, background)
        links[:] = coordinator.links
        expiring = any(each.expiring for each in described.values())
        next_order = max(each.next_order for each in described.values())
        coordinator.start(next_order, expiring=expiring, until=deadline_at(OPENING))
        undo.pop_all()
    how = tuple(described[number].opened for number in sorted(described))
    return Opened(coordinator, template, partial(let_go, lock), how, begin_more, taken)


def _take_lock(folder: Path) -> int:
    try:
        return take_lock(folder / LOCK)
    except StoreLockedError as error:
        # Only one engine has readers in other processes.
        owner = str(error).partition(": ")[2].partition(" writes")[0]
        raise StoreLockedError(
            f"{folder}: {owner} has it open, and a sharded memory has one owner; ask that one, such as `fanrank serve` "
            "over HTTP, or end it"
        ) from None


def placed(placement: Placement, settings: Settings) -> Placement:
    """The placement with what a caller says of it."""
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    return replace(placement, **given)


@dataclass(frozen=True, eq=False)
class Begin:
    """Starts the shards that join a memory, with the columns that are declared by then."""

    start: Start
    root: Path | None
    """The folder of the shards' directories; None: a memory without files."""
    options: EngineOptions
    template: Engine
    backend: str | None

    def __call__(self, number: int, *, stored: bool = False) -> Link:
        """The shard with this number, in memory or (`stored`) in its directory."""
        models = self.template.searcher.models
        path = str(self.root / folder_of(number)) if stored and self.root is not None else None
        return self.start(Setup(number, path, self._given(), models.pin, models.term_pin, False, self.backend))

    def _given(self) -> EngineOptions:
        return {**self.options, "columns": with_order(self.template.index.memory.schema.declared())}

    def follower(self, number: int) -> Link:
        """A follower of the shard with this number."""
        link = self(number)
        try:
            check_versions(call_all([link], deadline_at(OPENING), "describe"))
        except BaseException:
            close_all([link])
            raise
        return link

    def modelled(self) -> Link:
        """The shard of whole copies in this process, with its models."""
        models = self.template.searcher.models
        given: EngineOptions = {**self._given(), "encoder": models.encoder, "term_encoder": models.term_encoder}
        return LocalLink(Shard(Setup(MODELLED, None, given, backend=self.backend)))


def coordinate(
    owner: OwnerFile, links: Sequence[Link], begin: Begin, deadline: float, replicas: int = 1, background: bool = True
) -> tuple[MovingCoordinator, Callable[[int], Link]]:
    """(the coordinator of these shards, which is yet to be started; what starts a further shard)."""

    def lead(link: Link) -> Link:
        """The way to a shard of which this one is the leader."""
        if replicas == 1:
            return link
        number = link.number
        follow, recover = partial(begin.follower, number), lambda: coordinator.recover(shards=[number])
        return ReplicatedLink(link, follow, replicas - 1, deadline, recover, background=background)

    most = owner.placement.whole_at
    wholes = [WholeCopies(WHOLE, partial(begin, WHOLE), most), WholeCopies(MODELLED, begin.modelled, most)]
    fields = len(begin.template.bm25.fields)
    coordinator = MovingCoordinator(owner, [*map(lead, links)], wholes, fields, deadline)
    return coordinator, lambda number: lead(begin(number, stored=True))


def folder_of(number: int) -> str:
    """The name of a shard's directory."""
    return f"shard-{number:04d}"


def make_folder(folder: Path) -> None:
    """Make the folder if it is missing. Raises `ForeignIndexError` unless it is empty or holds a sharded memory."""
    if folder.exists() and not folder.is_dir():
        raise ForeignIndexError(f"{folder}: not a directory")
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        sync(folder.parent)
    if not (folder / OWNER).exists() and not (folder / SHARDS).exists():
        # Shards without a file of their owner are those of a first open that was cut off.
        cut_off = LOCK, f"{OWNER}.new", f"{OWNER}.new-journal"
        others = [file.name for file in folder.iterdir() if file.name not in cut_off]
        if RECORDS in others:
            raise ForeignIndexError(
                f"{folder}: is the directory of one engine, which Engine.open opens; to bring its records into shards "
                f"take a new directory: fanrank shards NEW --import {folder} --shards 4"
            )
        if INTENTS in others:
            raise lost_table(folder)
        if any(not name.startswith("shard-") for name in others):
            raise ForeignIndexError(
                f"{folder}: holds other files, {sorted(others)[0]!r} among them; choose an empty or new directory"
            )


def shard_options(options: EngineOptions, *, new: bool) -> EngineOptions:
    """The options of a shard's engine. It opens no model, keeps the texts, and has the column of orders.

    A directory keeps its columns, so they are left out where nobody gives them.
    """
    own: EngineOptions = {**options}
    if own.pop("keep_texts", True) is False:
        raise ParameterError("keep_texts=False is for an engine in memory; shards always keep the records")
    for name in ("encoder", "term_encoder", "log_texts"):
        own.pop(name, None)  # type: ignore[misc]
    columns = own.pop("columns", None)
    if columns is not None or new:
        own["columns"] = with_order(columns)
    return own


def template_options(config: Mapping[str, Any], options: EngineOptions) -> EngineOptions:
    """The options of an engine with the memory's parameters."""
    columns = without_order(config.get("columns") or {})
    return {**options_of(config), "columns": columns, "log_texts": options.get("log_texts", False)}


def make_template(
    config: Mapping[str, Any],
    options: EngineOptions,
    models: Models,
    folder: Path,
    backend: str | None,
) -> Engine:
    """An empty engine with the memory's parameters and models. Raises as `Engine.open`."""
    made = Engine(backend=backend, **template_options(config, options))
    # The models were made before the shards were opened, which need their pins.
    models.adopt(config, str(folder))
    made.searcher.models = models
    return made


def check_versions(described: Mapping[int, Description]) -> None:
    """Raise `ShardVersionError` where a shard runs another fanrank."""
    for number, each in described.items():
        if each.version != own_version():
            raise ShardVersionError(
                f"shard {number} runs fanrank {each.version}, and this process {own_version()}; install the same on "
                "all machines"
            )


def settle_parts(
    owner: OwnerFile, links: Sequence[Link], described: Mapping[int, Description]
) -> dict[int, Description]:
    """Let shards carry out what they prepared and the owner decided, and drop what it did not; what they are then.

    Raises `DamagedStoreError` where the owner's file is older or newer than a shard.
    """
    until = deadline_at(OPENING)
    for number, each in described.items():
        if each.prepared is not None:
            decided = owner.decided[number] == each.prepared
            owner.pass_over(each.prepared)
            links[number].send("finish" if decided else "forget", *(() if decided else (each.prepared,))).result(until)
    after: dict[int, Description] = call_all(links, until, "describe")
    for number, each in after.items():
        own, known = each.generation, owner.decided[number]
        if own != known:
            what = f"is older than shard {number}" if own > known else f"is newer than shard {number}, which is older"
            raise DamagedStoreError(
                f"{owner.path}: {what} (decision {known}, and the shard has carried out {own}); one of them was put "
                "back alone: restore the whole memory from a copy"
            )
    call_all(links, until, "drop_copies")
    return after


def check_strays(owner: OwnerFile, links: Sequence[Link]) -> None:
    """Raise `DamagedStoreError` where a shard holds a namespace that lies elsewhere."""
    for number, strays in call_all(links, deadline_at(OPENING), "strays", owner.placement).items():
        for namespace, records in strays.items():
            raise DamagedStoreError(
                f"{owner.path}: namespace {namespace!r} lies in shards {list(owner.placement.homes(namespace))}, and "
                f"shard {number} holds {records} records of it; restore the whole memory from a copy"
            )


def check_empty(folder: Path, described: Mapping[int, Description]) -> None:
    """Raise `ForeignIndexError` where a shard of a new memory holds records: another table says where all lie."""
    if any(each.next_order for each in described.values()):
        raise lost_table(folder)


def lost_table(folder: Path) -> ForeignIndexError:
    """The error of a memory whose owner's file is not there."""
    return ForeignIndexError(
        f"{folder}: its shards hold records, and the file that says which, {OWNER}, is not there; bring it back "
        "from a copy, or choose an empty or new directory"
    )


def check_stores(folder: Path, stores: Sequence[str | None], known: Sequence[str | None] | None) -> None:
    """Raise `ForeignIndexError` where a shard's directory is another one than the table was made with."""
    if known is None:
        return
    for number, (store, own) in enumerate(zip(stores, known, strict=True)):
        if store != own:
            raise ForeignIndexError(
                f"{folder}: shard {number} holds the records of another engine (store {store}, not {own}); bring back "
                "its own directory, or a copy of it"
            )


def _close(owner: OwnerFile) -> None:
    # The opening has failed already, and its error is the one to tell.
    with suppress(FanrankError):
        owner.close()
