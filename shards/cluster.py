"""Shards as actors of Ray: one process each, which Ray starts anew when it ends.

A shard that is started anew opens its directory, whose log holds all that it acknowledged. It answers nothing before
the coordinator has tagged its state with an epoch.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..engine.errors import DeadlineError, FanrankError, MissingExtraError, ShardError, ShardVersionError
from ..engine.signatures import EngineOptions
from .links import Link, UnavailableError, Verb, Waiting
from .shard import Shard

try:
    import ray
    import ray.exceptions
except ImportError:
    raise MissingExtraError("ray", "ray") from None

from .packing import pack, unpack

LEAST = (2, 60)
"""The oldest version of Ray that serves."""

THREADS = 16
"""Calls that an actor works on at a time: searches go on while it writes."""


class Actor:
    """What runs in an actor's process: a shard whose errors travel as values, so that they keep their class."""

    def __init__(
        self,
        number: int,
        path: str | None,
        options: EngineOptions,
        pin: Mapping[str, Any] | None,
        term_pin: Mapping[str, Any] | None,
        backend: str | None,
        known: bool,
    ) -> None:
        self._failure: FanrankError | None = None
        try:
            self._shard = Shard(number, path, options, pin, term_pin, backend, known=known)
        except FanrankError as error:
            # An actor that cannot be made is started again and again, and nobody learns why. This one says it.
            self._failure = error

    def call(self, message: bytes) -> bytes:
        """Call a verb: (verb, arguments, keywords) packed; packed, (whether it succeeded, the value or the error)."""
        verb, arguments, keywords = unpack(message)
        return pack(self._answer(verb, arguments, keywords))

    def _answer(self, verb: Verb, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[bool, Any]:
        if self._failure is not None:
            return False, self._failure
        try:
            return True, getattr(self._shard, verb)(*arguments, **keywords)
        except FanrankError as error:
            return False, error


class Cluster:
    """A connection to Ray. `own` says that this process started it, and stops it."""

    def __init__(self, address: str | None, own: bool) -> None:
        self.address = address
        self._own = own

    @classmethod
    def connect(cls, address: str | None) -> Cluster:
        """The cluster at an address; None: one of this process alone, on this machine.

        Where this process is connected already, that connection is used and left open. Raises `ShardError` for an
        address that cannot be reached, and `ShardVersionError`.
        """
        found = tuple(int(part) for part in ray.__version__.split(".")[:2])
        if found < LEAST:
            least = ".".join(map(str, LEAST))
            raise ShardVersionError(
                f"Ray {ray.__version__} is installed, and shards need {least}: pip install 'fanrank[ray]'"
            )
        if ray.is_initialized():
            return cls(address, False)
        local: dict[str, Any] = {"include_dashboard": False} if address is None else {}
        try:
            ray.init(
                address or "local", log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True, **local
            )
        except (ConnectionError, ValueError, TimeoutError, OSError) as error:
            raise ShardError(
                f"no Ray cluster can be reached at {address!r} ({shown(error)}); start one with `ray start --head`, or "
                "leave the address out"
            ) from error
        except RuntimeError as error:
            if "ersion mismatch" in str(error):
                raise ShardVersionError(
                    f"the cluster at {address!r} runs other versions than this process: {shown(error)}; install the "
                    "same on all machines"
                ) from error
            raise ShardError(f"Ray cannot be started at {address!r}: {shown(error)}") from error
        return cls(address, True)

    def start(
        self,
        number: int,
        path: str | None,
        options: EngineOptions,
        pin: Mapping[str, Any] | None,
        term_pin: Mapping[str, Any] | None,
        known: bool,
        backend: str | None = None,
        num_gpus: float = 0,
    ) -> Link:
        """The shard with this number, as an actor."""
        settings = {
            # Shards wait more than they compute, and a small machine may hold many.
            "num_cpus": 0,
            "num_gpus": num_gpus if number >= 0 else 0,
            "max_restarts": -1,
            "max_task_retries": 0,
            "max_concurrency": THREADS,
            "scheduling_strategy": "SPREAD",
        }
        where = None if path is None else str(Path(path).absolute())
        actor = ray.remote(Actor).options(**settings).remote(number, where, options, pin, term_pin, backend, known)
        return ActorLink(number, actor)

    def close(self) -> None:
        """Stop what this process started."""
        if self._own and ray.is_initialized():
            ray.shutdown()


class ActorLink:
    """The way to an actor."""

    def __init__(self, number: int, actor: Any) -> None:
        self._number = number
        self.actor = actor

    @property
    def number(self) -> int:
        return self._number

    def send(self, verb: Verb, *arguments: Any, **keywords: Any) -> Waiting:
        return _Answer(self._number, self.actor.call.remote(pack((verb, arguments, keywords))))

    def close(self) -> None:
        try:
            self.send("close").result(None)
        finally:
            with contextlib.suppress(Exception):
                ray.kill(self.actor, no_restart=True)


class _Answer:
    """An answer of an actor that is on its way."""

    def __init__(self, number: int, reference: Any) -> None:
        self._number = number
        self._reference = reference

    def result(self, until: float | None) -> Any:
        succeeded, value = _received(self._number, self._reference, until)
        if not succeeded:
            raise value
        return value


def _received(number: int, reference: Any, until: float | None) -> Any:
    timeout = None if until is None else max(until - time.monotonic(), 0.0)
    try:
        return unpack(ray.get(reference, timeout=timeout))
    except ray.exceptions.GetTimeoutError:
        raise DeadlineError(f"shard {number} did not answer by the deadline") from None
    except ray.exceptions.ActorUnavailableError as error:
        raise UnavailableError(f"shard {number} does not answer: {shown(error)}") from error
    except ray.exceptions.ActorDiedError as error:
        raise ShardError(f"shard {number} has ended, and Ray does not start it anew: {shown(error)}") from error
    except ray.exceptions.RayError as error:
        raise UnavailableError(f"shard {number} does not answer: {shown(error)}") from error


def shown(error: BaseException) -> str:
    """The first line of an error's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
