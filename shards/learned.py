"""What is learned of a namespace beside its records: how recent used hits are, and what names meant.

The first of its shards keeps it, with its directory, and a namespace that moves takes it along. Whole copies get it
with the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..engine.errors import FanrankError
from .coordinator import Coordinator
from .links import Link


def tell(coordinator: Coordinator, namespace: str, verb: str, *arguments: Any) -> None:
    """Tell the shard that keeps what is learned of a namespace, then the whole copies of it."""
    until = coordinator.until()
    home = coordinator.links[coordinator.view.placement.homes(namespace)[0]]
    learned = home.send("tell", namespace, verb, *arguments).result(until)
    for whole in coordinator.wholes.values():
        if whole.link is not None and namespace in whole.names:
            try:
                whole.link.send("learn", learned).result(until)
            except FanrankError:
                whole.clear()


def carry_learned(coordinator: Coordinator, namespaces: Iterable[str], target: Link) -> None:
    """Bring what is learned of these namespaces to another shard."""
    until = coordinator.until()
    names: dict[int, list[str]] = {}
    for namespace in namespaces:
        names.setdefault(coordinator.placement.homes(namespace)[0], []).append(namespace)
    for home, own in names.items():
        learned = coordinator.links[home].send("learned", own).result(until)
        target.send("learn", learned).result(until)
