"""Which verbs every door offers, by their declaration, and which a kind of memory lacks: `Memory.lacking` of its class.

`offered` marks a method of `Memory`, and that is the verb's one entry.

Its parameters are plain values with one line on each; its answer is made of numbers, texts, lists, tuples and
dictionaries. Made from it are its awaited twin, the verb of a namespace and of both clients, and at the doors that it
names an address of the server, a tool for models, and a command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from .errors import NotSupportedError

if TYPE_CHECKING:
    from .records.declared import Declared

REST, TOOL, COMMAND = "rest", "tool", "command"
"""Doors. With `REST` both clients have the verb, too."""

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Offered:
    """A verb as it was declared."""

    function: Callable[..., Any]
    doors: tuple[str, ...]
    writes: bool
    whole: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def about(self) -> str:
        """The first sentences of its docstring."""
        return " ".join(inspect.cleandoc(self.function.__doc__ or "").split("\n\n")[0].split())

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @property
    def in_namespace(self) -> bool:
        """Whether it is of one namespace, and not of the whole memory."""
        return "namespace" in self.signature.parameters

    @property
    def namespace(self) -> str | None:
        """The namespace that is meant where none is named; None: all of them."""
        default: str | None = self.signature.parameters["namespace"].default
        return default

    @property
    def shows(self) -> bool:
        """Whether it can show its progress on a terminal."""
        return "progress" in self.signature.parameters

    @cached_property
    def parameters(self) -> dict[str, Declared]:
        """Those beside the namespace and the progress."""
        from .records.declared import declared_parameters  # which a plain search does not need

        return declared_parameters(self.function, ("self", "namespace", "progress"))

    def to_json(self, value: Any) -> Any:
        """An answer as JSON values. A dictionary with other keys than texts becomes a list of pairs."""
        return _converted(get_type_hints(self.function)["return"], value, written=True)

    def from_json(self, value: Any) -> Any:
        """The answer that `to_json` wrote."""
        return _converted(get_type_hints(self.function)["return"], value, written=False)


OFFERED: dict[str, Offered] = {}
"""Every verb that was marked, by its name."""


def offered(*doors: str, writes: bool = False, whole: bool = False) -> Callable[[F], F]:
    """Marks a method of `Memory` as a verb of these doors; `writes`: it changes the memory.

    `whole`: what it does or says is of all tenants, whichever namespace it is called for.
    """

    def mark(function: F) -> F:
        OFFERED[function.__name__] = Offered(function, doors, writes, whole)
        return function

    return mark


def offered_at(door: str) -> list[Offered]:
    """The verbs of a door."""
    return [verb for verb in OFFERED.values() if door in verb.doors]


def awaited(verb: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The awaited twin of a verb, whose work a thread of the memory's own does."""
    name = verb.__name__

    @wraps(verb)
    async def twin(self: Any, *given: Any, **keywords: Any) -> Any:
        return await self._write_awaited(partial(getattr(self, name), *given, **keywords))

    twin.__name__, twin.__qualname__ = f"a{name}", f"Memory.a{name}"
    twin.__doc__ = f"As `{name}`, awaited; cancelled as `aadd`."
    made: Any = twin
    return made  # type: ignore[no-any-return]


def _converted(kind: Any, value: Any, *, written: bool) -> Any:
    """An answer of this type as JSON values, or made of them."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is dict:
        named = parts[0] is str
        pairs = value.items() if written or named else value
        made = [(key, _converted(parts[1], one, written=written)) for key, one in pairs]
        return [[*pair] for pair in made] if written and not named else dict(made)
    if origin is list:
        return [_converted(parts[0], one, written=written) for one in value]
    if origin is tuple:
        row = [_converted(part, one, written=written) for part, one in zip(parts, value, strict=True)]
        return row if written else tuple(row)
    return value


_NUMBERED = "each shard numbers its own terms; use search, or an Engine for tensors"
SHARDS: Mapping[str, str] = {
    "from_records": "a sharded memory lives in a directory: ShardedEngine.open(path, shards=...), then add the records",
    "load": "a saved index is of one engine, and has no records; use ShardedEngine.open(path)",
    "save": "each shard keeps an index of its own, beside its records; backup(path) copies all of them",
    "copy_to": "copy_to makes one engine's directory; export the records to a file, open another memory with the new "
    "parameters (ShardedEngine.open or Engine.open), and import_records from the file",
    "to": "a shard that is started anew serves from where it was opened: say num_gpus=1, or backend, to "
    "ShardedEngine.open",
    "encode": _NUMBERED,
    "search_tensors": _NUMBERED,
}

_BY_ENGINE = (
    "__enter__ close flush vacuum sweep refresh verify backup check_backup restore copy_to import_records "
    "rewrite arewrite search_stream"
)
OF_SEVERAL = "it is of more than one namespace: call it on what the handle was made of"
NAMESPACE: Mapping[str, str] = dict.fromkeys(_BY_ENGINE.split(), OF_SEVERAL)
"""Beside the verbs that are offered and of the whole memory."""

_OF_FILES = "flush vacuum sweep verify backup check_backup restore copy_to"
_OF_MEMORY = "opened backend ids candidates search_stream recency health drift"
CLIENT: Mapping[str, str] = {
    **dict.fromkeys(_OF_FILES.split(), "it is done on the server's machine, in its process or by the command fanrank"),
    **dict.fromkeys(_OF_MEMORY.split(), "no request asks for it; do it in the process that has the memory open"),
    **dict.fromkeys(("rewrite", "arewrite"), "no function can be sent; use patch, or update_where with a mapping"),
}


class Lacking:
    """Stands in a class for a verb that its memories do not have."""

    def __init__(self, kind: str, verb: str, why: str) -> None:
        self.message = f"{kind} has no {verb}: {why}"
        self.__doc__ = f"Raises `NotSupportedError`: {why}."

    def __get__(self, memory: object | None, kind: type) -> Any:
        return self if memory is None else self()

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise NotSupportedError(self.message)
