"""What is learned of a namespace beside its records: how recent used hits are, and what names meant.

The first of its shards keeps it, with its directory, and a namespace that moves takes it along. Whole copies get it
with the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..engine.errors import FanrankError
from .coordinator import Coordinator
from .links import Link
from .shard import Shard


def tell(coordinator: Coordinator, namespace: str, verb: str, *arguments: Any) -> None:
    """Tell the shard that keeps what is learned of a namespace, then the whole copies of it."""
    until = coordinator.until()
    home = coordinator.links[coordinator.view.placement.homes(namespace)[0]]
    learned = home.send("call", tell_monitor, verb, namespace, *arguments).result(until)
    for whole in coordinator.wholes.values():
        if whole.link is not None and namespace in whole.names:
            try:
                whole.link.send("call", take_learned, {namespace: learned}).result(until)
            except FanrankError:
                whole.clear()


def tell_monitor(shard: Shard, verb: str, namespace: str, *arguments: Any) -> dict[str, Any]:
    """Call a verb of the shard's monitor; returns all that is learned of the namespace then."""
    monitor = shard.engine.monitor
    getattr(monitor, verb)(*arguments)
    return monitor.learned(namespace)


def learned_of(shard: Shard, namespaces: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What the shard has learned of these namespaces, without those of which it knows nothing."""
    found = {namespace: shard.engine.monitor.learned(namespace) for namespace in namespaces}
    return {namespace: learned for namespace, learned in found.items() if learned}


def take_learned(shard: Shard, learned: Mapping[str, Mapping[str, Any]]) -> None:
    """Go on from what another shard has learned of these namespaces, and keep it."""
    for namespace, values in learned.items():
        shard.engine.monitor.learn(namespace, values)
    store = shard.engine.index.memory.store
    if store is not None and learned:
        store.keep_learned(learned)


def carry_learned(coordinator: Coordinator, namespaces: Iterable[str], target: Link) -> None:
    """Bring what is learned of these namespaces to another shard."""
    until = coordinator.until()
    names: dict[int, list[str]] = {}
    for namespace in namespaces:
        names.setdefault(coordinator.placement.homes(namespace)[0], []).append(namespace)
    for home, own in names.items():
        learned = coordinator.links[home].send("call", learned_of, own).result(until)
        target.send("call", take_learned, learned).result(until)
