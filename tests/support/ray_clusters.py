"""Clusters of Ray that stand for several machines, or for one that others started."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

MEMORY = 80 << 20
"""Bytes of shared memory of a machine; the least that Ray takes is 75 MiB."""


class Machines:
    """Machines of a cluster: nodes of Ray on this machine, each with an address and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[str, Any] = {}
        self.cluster = Cluster()
        self.first = self._start(folder / "first", include_dashboard=False)
        """The address of the first machine, which Ray chooses."""

    def add(self, address: str) -> None:
        """Let a machine join."""
        self._start(self.home(address), node_ip_address=address)

    def _start(self, home: Path, **settings: Any) -> str:
        home.mkdir(exist_ok=True)
        variables = {"HOME": str(home)}
        # Once a process has started a Ray of its own, all that it starts ask for the token in its home.
        if (token := Path.home() / ".ray" / "auth_token").exists():
            variables["RAY_AUTH_TOKEN_PATH"] = str(token)
        node = self.cluster.add_node(env_vars=variables, object_store_memory=MEMORY, num_cpus=0, **settings)
        self.nodes[node.node_ip_address] = node
        return str(node.node_ip_address)

    def remove(self, address: str) -> None:
        """End all processes of a machine. Its home stays."""
        self.cluster.remove_node(self.nodes.pop(address), allow_graceful=True)
        # Ray hands out work to a machine until it has noticed.
        while any(each["Alive"] and each["NodeManagerAddress"] == address for each in ray.nodes()):
            time.sleep(0.1)

    def home(self, address: str) -> Path:
        return self.folder / ("first" if address == self.first else address)


@contextmanager
def machines(*more: str) -> Iterator[Machines]:
    """A cluster of a first machine and of more, to which this process is connected."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    folder = Path(tempfile.mkdtemp(prefix="fanrank-"))
    made = Machines(folder)
    try:
        for address in more:
            made.add(address)
        ray.init(made.cluster.address, log_to_driver=False, logging_level="ERROR")
        made.cluster.wait_for_nodes(timeout=60)
        yield made
    finally:
        ray.shutdown()
        made.cluster.shutdown()
        shutil.rmtree(folder)
