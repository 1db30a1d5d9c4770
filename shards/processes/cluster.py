"""Shards as actors of Ray: one process each, which Ray starts anew when it ends.

A shard that is started anew opens its directory, whose log holds all that it acknowledged. It answers nothing before
the coordinator has tagged its state with an epoch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...engine.errors import (
    DeadlineError,
    FanrankError,
    MissingExtraError,
    ParameterError,
    ShardError,
    ShardVersionError,
    StoreLockedError,
)
from ..shard.shard import Setup, Shard
from .links import Done, Link, UnavailableError, Verb, Waiting

try:
    import ray
    import ray.exceptions
    from ray import cloudpickle
except ImportError:
    raise MissingExtraError("ray", "ray") from None

from .machines import Machines

LEAST = (2, 60)
"""The oldest version of Ray that serves."""

THREADS = 16
"""Calls that an actor works on at a time: searches go on while it writes."""

STORE = 256 << 20
"""Bytes of shared memory of a Ray of this process alone. It holds messages above 100 KB while they are on their way."""

# Seconds in which the process that a shard takes the place of lets go of its directory. After a kill, Ray and the
# kernel take some 100 ms; a machine with more work than cores takes some seconds.
LET_GO = 20.0

# Seconds that a shard has to close. Its log is synced, so one that is ended by force loses nothing.
CLOSING = 30.0

# Attempts to start a Ray of our own.
STARTS = 3

# Seconds in which a machine must take a connection.
PROBE = 5.0


logger = logging.getLogger(__name__)


class Actor:
    """What runs in an actor's process: a shard whose errors travel as values, so that they keep their class.

    An actor whose engine cannot be opened says why, and tries again when it is called next: the directory may be back
    by then. If it failed to start, Ray would start it again and again, and nobody would learn why.
    """

    def __init__(self, setup: Setup) -> None:
        # Started anew, it must find its directory, be it new when the actor was made.
        again = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        self._setup = replace(setup, known=setup.known or again)
        self._opening = threading.Lock()
        self._shard: Shard | None = None

    def call(self, message: bytes) -> bytes:
        """Call a verb: (verb, arguments, keywords) packed; packed, (whether it succeeded, the value or the error)."""
        verb, arguments, keywords = unpack(message)
        return pack(self._answer(verb, arguments, keywords))

    def _answer(self, verb: Verb, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[bool, Any]:
        try:
            return True, getattr(self._ready(), verb)(*arguments, **keywords)
        except FanrankError as error:
            return False, error

    def process(self) -> int:
        """The number of the actor's process."""
        return os.getpid()

    def _ready(self) -> Shard:
        if self._shard is None:
            with self._opening:
                if self._shard is None:
                    self._shard = self._open()
        return self._shard

    def _open(self) -> Shard:
        """The shard, once the process before it has let go of its directory. Raises as `Shard`."""
        until = time.monotonic() + LET_GO
        while True:
            try:
                return Shard(self._setup)
            except StoreLockedError:  # noqa: PERF203
                if time.monotonic() >= until:
                    raise
                time.sleep(0.05)


class Cluster:
    """A connection to Ray. `own` says that this process started it, and stops it with the last of its users."""

    _users = 0
    _counting = threading.Lock()

    def __init__(self, address: str | None, own: bool) -> None:
        self.address = address
        self._own = own
        self._machines: Machines | None = None

    @classmethod
    def connect(cls, address: str | None, *, num_cpus: float = 0) -> Cluster:
        """The cluster at an address; None: one of this process alone, on this machine.

        Where this process is connected already, that connection is used, and left open if others made it. `num_cpus` is
        what each actor takes. Raises `ShardError` for an address that cannot be reached, and `ShardVersionError`.
        """
        check_ray()
        if address is not None and (not isinstance(address, str) or not address):
            raise ParameterError(f"address must be 'auto', 'ray://host:port' or 'host:port', not {address!r}")
        with cls._counting:
            if ray.is_initialized():
                own = cls._users > 0
            else:
                _connect(address, num_cpus)
                own = True
            cls._users += own
        return cls(address, own)

    def start(
        self,
        setup: Setup,
        backend: str | None = None,
        num_gpus: float = 0,
        num_cpus: float = 0,
        shared: bool = False,
    ) -> Link:
        """A shard as an actor, on the machine of its directory. The keywords are those of `ShardedEngine.open`."""
        number, path = setup.number, setup.path
        settings: dict[str, Any] = {
            # Shards wait more than they compute, and a small machine may hold many.
            "num_cpus": num_cpus if number >= 0 else 0,
            "num_gpus": num_gpus if number >= 0 else 0,
            "max_restarts": -1,
            # A write that is sent again might be done twice. The coordinator asks what became of it.
            "max_task_retries": 0,
            "max_concurrency": THREADS,
            "scheduling_strategy": "SPREAD",
        }
        if num_gpus and number >= 0 and self.address is None:
            check_gpus(num_gpus * (number + 1))
        # Where it begins with ~, the path is that of each machine's user.
        where = path if path is None or path.startswith("~") else str(Path(path).absolute())
        if where is not None and not shared:
            folder, name = where.rsplit("/", 1)
            if self._machines is None:
                self._machines = Machines(folder, needs_of(num_gpus, num_cpus))
            settings["resources"] = self._machines.resources(number, name, setup.known)
        try:
            actor = ray.remote(Actor).options(**settings).remote(replace(setup, path=where, backend=backend))
        except Exception as error:
            raise ShardError(f"shard {number} cannot be started: {shown(error)}") from error
        return ActorLink(number, actor)

    def close(self) -> None:
        """Stop what this process started, with the last that uses it."""
        own, self._own = self._own, False
        with self._counting:
            type(self)._users -= own
            if own and not type(self)._users and ray.is_initialized():
                ray.shutdown()


def needs_of(num_gpus: float, num_cpus: float) -> dict[str, float]:
    """What a shard takes of Ray's resources, by their names."""
    return {kind: need for kind, need in (("GPU", num_gpus), ("CPU", num_cpus)) if need}


def check_gpus(wanted: float) -> None:
    """Raise `ShardError` where this machine has fewer GPUs. Ray itself waits until there are enough."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    there = resources.get("GPU", 0.0)
    if wanted > there:
        raise ShardError(
            f"the shards ask for {wanted:g} GPUs, and Ray sees {there:g} on this machine; lower num_gpus (shards may "
            "share one: num_gpus=0.5), or give the address of a cluster that has them"
        )


def check_ray() -> None:
    """Raise `ShardVersionError` where the Ray of this process is too old."""
    found = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if found < LEAST:
        least = ".".join(map(str, LEAST))
        raise ShardVersionError(
            f"Ray {ray.__version__} is installed, and shards need {least}: pip install 'fanrank[ray]'"
        )


def _connect(address: str | None, num_cpus: float) -> None:
    """Start Ray here, or connect to the cluster at an address."""
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    _probe(address)
    if address is None:
        # Ray starts no dashboard and no idle workers, and sends no statistics of its use.
        settings |= {"include_dashboard": False, "object_store_memory": STORE}
        settings |= {"num_cpus": 0} if not num_cpus else {}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _hush()
        _start(address, settings)
    except Exception as error:  # Ray raises classes of gRPC's and of its own for the same failure
        with contextlib.suppress(Exception):
            ray.shutdown()
        if isinstance(error, ImportError):  # the client of Ray needs gRPC
            raise MissingExtraError("the client of Ray", "ray") from error
        if "uthenticat" in (told := messages_of(error)) or (
            # A client that has no token waits as for a cluster that is not up, though one listens there.
            "connection timeout" in told and "RAY_AUTH_MODE" not in os.environ
        ):
            raise ShardError(
                f"the cluster at {address!r} asks for its token ({shown(error)}): set RAY_AUTH_MODE=token, and "
                "RAY_AUTH_TOKEN where the token is not in ~/.ray/auth_token"
            ) from error
        if "ersion mismatch" in told or "ersions" in told:
            raise ShardVersionError(
                f"the cluster at {address!r} runs other versions than this process: {' '.join(str(error).split())}; "
                "install the same Python and Ray on all machines"
            ) from error
        if address is None:
            raise ShardError(f"Ray cannot be started on this machine: {shown(error)}") from error
        raise ShardError(unreachable_message(address, error)) from error


def _start(address: str | None, settings: Mapping[str, Any]) -> None:
    """Call `ray.init`. A Ray of our own that takes more than 30 s, on a busy machine, is started again."""
    for left in reversed(range(STARTS)):
        try:
            ray.init(address or "local", **settings)
        except Exception as error:  # noqa: PERF203
            if address is not None or not left or "timed out during startup" not in str(error):
                raise
            with contextlib.suppress(Exception):
                ray.shutdown()
        else:
            return


def _probe(address: str | None) -> None:
    """Raise `ShardError` where nobody listens at an address with a port. Ray itself tries for minutes."""
    given = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address or ""
    if ":" not in given:
        return
    try:
        parts = urlsplit(given if "://" in given else f"//{given}")
        if parts.hostname and parts.port:
            socket.create_connection((parts.hostname, parts.port), timeout=PROBE).close()
    except (OSError, ValueError) as error:
        raise ShardError(unreachable_message(address, error)) from error


def unreachable_message(address: str | None, error: BaseException) -> str:
    return (
        f"no Ray cluster can be reached at {address!r} ({shown(error)}); start one with `ray start --head`, or leave "
        "the address out"
    )


def messages_of(error: BaseException | None) -> str:
    """The messages of an error and of its causes."""
    return "" if error is None else f"{error} {messages_of(error.__cause__ or error.__context__)}"


def _hush() -> None:
    """Let Ray's notices of ended processes go to the log. Ray prints them on standard output, among a program's own."""

    def log(data: Mapping[str, Any], ignore_prefix: bool) -> None:
        for line in data["lines"]:
            logger.info("Ray: %s", line.partition(". ")[0])

    worker = ray._private.worker
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = log


class ActorLink:
    """The way to an actor."""

    def __init__(self, number: int, actor: Any) -> None:
        self.number, self.actor = number, actor

    def send(self, verb: Verb, *arguments: Any, **keywords: Any) -> Waiting:
        try:
            return _Answer(self.number, self.actor.call.remote(pack((verb, arguments, keywords))))
        except Exception as error:  # such as a connection that is closed
            return Done(error=ShardError(f"shard {self.number} cannot be reached: {shown(error)}"))

    def process(self, until: float | None) -> int:
        """The number of the actor's process. Raises as `Waiting.result`."""
        return int(_receive(self.number, self.actor.process.remote(), until))

    def close(self) -> None:
        try:
            # One that ended, or hangs, has nothing that is not in its log.
            with contextlib.suppress(ShardError, DeadlineError):
                self.send("close").result(time.monotonic() + CLOSING)
        finally:
            if ray.is_initialized():
                ray.kill(self.actor, no_restart=True)


class _Answer:
    """An answer of an actor that is on its way."""

    def __init__(self, number: int, reference: Any) -> None:
        self._number = number
        self._reference = reference

    def result(self, until: float | None) -> Any:
        succeeded, value = unpack(_receive(self._number, self._reference, until))
        if not succeeded:
            raise value
        return value


def _receive(number: int, reference: Any, until: float | None) -> Any:
    timeout = None if until is None else max(until - time.monotonic(), 0.0)
    try:
        return ray.get(reference, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        raise DeadlineError(f"shard {number} did not answer by the deadline") from None
    except ray.exceptions.RayTaskError as error:
        raise ShardError(f"shard {number} failed: {error.cause!r}") from error
    except ray.exceptions.ActorDiedError as error:
        if "import" in str(error):
            raise ShardVersionError(
                f"shard {number} cannot import fanrank on its machine ({shown(error)}); install the same fanrank on "
                "all machines of the cluster"
            ) from error
        raise ShardError(
            f"shard {number} has ended, and Ray does not start it anew ({shown(error)}); open the memory again"
        ) from error
    except ray.exceptions.RayError as error:
        raise UnavailableError(f"shard {number} does not answer: {shown(error)}") from error
    except Exception as error:  # the connection to the cluster is lost
        raise ShardError(f"shard {number} cannot be reached: {shown(error)}; open the memory again") from error


def shown(error: BaseException) -> str:
    """The first line of an error's message, and the last where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"{lines[0]} {lines[-1]}"[:300] if lines[0].endswith(":") else lines[0][:200]


PROTOCOL = 5
"""The first that copies an array once."""

# A class or function of the script that was started: `pickle` sends its name, which means another script over there.
_MAIN = b"__main__"
_dumps: Callable[..., bytes] = cloudpickle.dumps


def pack(value: Any) -> bytes:
    """The value as bytes. Raises as `pickle`.

    Ray sends bytes as they are, and pickles all else with Python code: a fan-out of 20 queries and its answer take Ray
    214 us of a processor, and `pickle` 100 us (AMD EPYC). What only Ray's pickle knows how to send goes by it.
    """
    try:
        packed = pickle.dumps(value, protocol=PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        packed = _MAIN
    if _MAIN in packed:
        packed = _dumps(value, protocol=PROTOCOL)
    return packed


def unpack(packed: bytes) -> Any:
    """The value that `pack` was given."""
    return pickle.loads(packed)
