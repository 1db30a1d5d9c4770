"""Which machine of a cluster each shard runs on, where the machines have storage of their own.

A shard runs where its directory lies, also when Ray starts it anew: in an empty directory of another machine it would
answer without its records. When a memory is opened, each machine says which directories it holds. So nothing about
machines is kept, and a disk may be carried to another machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...engine.errors import ShardError, ShardVersionError, StorageError

# Ray gives each machine 1 of the resource `node:ADDRESS`, in steps of 0.0001. An actor that takes some of it runs there
# and waits while the machine is away. One that is bound to the id of a node ends with it: ids are new at each start.
STEP = 0.0001

ANSWERING = 60.0
"""Seconds in which a machine must say what it holds. It may have to start a process."""


@dataclass(eq=False)
class Machine:
    """A machine of the cluster."""

    node: str
    address: str
    resources: Mapping[str, float]
    names: set[str] = field(default_factory=set)
    """The directories that its folder holds."""
    shards: int = 0
    """How many shards were brought here."""

    def fits(self, needs: Mapping[str, float]) -> bool:
        """Whether one shard more finds what it needs here, next to those that were brought here."""
        return all(self.resources.get(kind, 0.0) + 1e-9 >= need * (self.shards + 1) for kind, need in needs.items())


class Machines:
    """The machines of the cluster to which this process is connected, and the shards of one memory there.

    `folder` holds the directories of the shards, on each machine. `needs` are the resources of Ray's that one takes.
    """

    def __init__(self, folder: str, needs: Mapping[str, float]) -> None:
        self._folder = folder
        self._needs = needs
        self._machines: dict[str, Machine] = {}
        self._checked = False

    def resources(self, number: int, name: str, known: bool) -> dict[str, float]:
        """What an actor takes of Ray's resources, so that it runs on the machine of the directory `name`.

        `known` says that the directory was made before. A new one is made on the machine that has the fewest. Raises
        `StorageError` where it is on no machine, and `ShardError` where it is on several, or its machine is too small.
        """
        self._refresh()
        holders = [machine for machine in self._machines.values() if name in machine.names]
        if len(holders) > 1:
            raise ShardError(self._several(number, name, holders))
        if holders:
            (machine,) = holders
        elif known and len(self._machines) > 1:
            asked = addresses_of(self._machines.values())
            raise StorageError(
                f"the directory of shard {number} is lost: none of the machines {asked} has {self._folder}/{name}; "
                "start Ray on the machine that has it, or bring it back from a copy"
            )
        else:
            machine = self._choose(number)
            if len(self._machines) > 1:
                self._make(number, name, machine)
        if not machine.fits(self._needs):
            raise ShardError(f"machine {machine.address} holds the directory of shard {number}, {self._too_small()}")
        machine.shards += 1
        return {f"node:{machine.address}": STEP}

    def _refresh(self) -> None:
        """Ask the machines that joined the cluster since what they hold. A machine alone is not asked."""
        alive = nodes_alive()
        kept = {node: machine for node, machine in self._machines.items() if node in alive}
        joined = {
            node: Machine(node, each["NodeManagerAddress"], each["Resources"])
            for node, each in alive.items()
            if node not in kept
        }
        if len(alive) > 1:
            # The first machine of a cluster may have been alone until now.
            asked = [*kept.values(), *joined.values()] if len(kept) == 1 else [*joined.values()]
            for machine, names in self._ask(asked, names_in, self._folder):
                machine.names = {*names}
            # One that left meanwhile said nothing.
            alive = nodes_alive()
        self._machines = {node: machine for node, machine in (kept | joined).items() if node in alive}

    def _choose(self, number: int) -> Machine:
        """The machine for a new shard."""
        fitting = [machine for machine in self._machines.values() if machine.fits(self._needs)]
        if not fitting:
            raise ShardError(f"shard {number} finds no machine in the cluster, {self._too_small()}")
        return min(fitting, key=lambda machine: (len(machine.names), machine.shards, machine.address))

    def _make(self, number: int, name: str, machine: Machine) -> None:
        """Make a directory on a machine. Raises `ShardError` where others see it."""
        self._ask([machine], make, f"{self._folder}/{name}")
        machine.names.add(name)
        if self._checked:
            return
        others = [other for other in self._machines.values() if other is not machine]
        seeing = [other for other, names in self._ask(others, names_in, self._folder) if name in names]
        if seeing:
            self._ask([machine], remove, f"{self._folder}/{name}")
            raise ShardError(self._several(number, name, [machine, *seeing]))
        self._checked = True

    def _ask(self, machines: Iterable[Machine], work: Any, path: str) -> list[tuple[Machine, Any]]:
        """What machines answer to a function of a path."""
        asked = ray.remote(work)
        sent = []
        for machine in machines:
            there = NodeAffinitySchedulingStrategy(machine.node, soft=False)
            sent.append((machine, asked.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(path)))
        return [(machine, answer_of(machine, reference)) for machine, reference in sent]

    def _several(self, number: int, name: str, holders: Iterable[Machine]) -> str:
        return (
            f"machines {addresses_of(holders)} all see {self._folder}/{name}, the directory of shard {number}: if that "
            "is one storage, open with shared=True; if it is not, move the older ones away"
        )

    def _too_small(self) -> str:
        needs = " and ".join(f"{need:g} {kind}" for kind, need in self._needs.items())
        return (
            f"and a shard takes {needs}, which is more than there is left; lower num_gpus or num_cpus, or add machines"
        )


def answer_of(machine: Machine, reference: Any) -> Any:
    """What a machine answered. Raises `ShardError`, `ShardVersionError` and `StorageError`."""
    try:
        return ray.get(reference, timeout=ANSWERING)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, OSError):
            raise StorageError(f"machine {machine.address}: {error.cause}") from error
        if "No module named" in str(error):
            raise ShardVersionError(
                f"machine {machine.address} cannot import fanrank; install the same fanrank on all machines of the "
                "cluster"
            ) from error
        raise ShardError(f"machine {machine.address} cannot say which shards it holds: {error.cause!r}") from error
    except ray.exceptions.RayError as error:
        if machine.node not in nodes_alive():
            return ()
        raise ShardError(
            f"machine {machine.address} does not say which shards it holds ({type(error).__name__}); is it up?"
        ) from error


def nodes_alive() -> dict[str, dict[str, Any]]:
    """The nodes of the cluster, by their ids."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return {each["NodeID"]: each for each in nodes if each["Alive"]}


def addresses_of(machines: Iterable[Machine]) -> str:
    return ", ".join(sorted(machine.address for machine in machines))


def names_in(folder: str) -> list[str]:
    """The directories in a folder of the machine that runs this; none if there is no such folder."""
    path = Path(folder).expanduser()
    return [each.name for each in path.iterdir() if each.is_dir()] if path.is_dir() else []


def make(path: str) -> None:
    """Make a directory on the machine that runs this."""
    Path(path).expanduser().mkdir(parents=True, exist_ok=True)


def remove(path: str) -> None:
    """Remove an empty directory of the machine that runs this."""
    os.rmdir(os.path.expanduser(path))
