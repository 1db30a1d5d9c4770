"""What a dataclass declares of its fields: the type, the bounds and one line on each, from which every door is made.

A field is ``name: Annotated[type, About("One line.")] = default``. The server's schemas, the tools of a model and the
options of the command line read it here.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from inspect import signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from .checks import About

_KINDS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_KINDS |= {Sequence[str]: "strings", Iterable[str]: "strings", Mapping[str, str]: "object"}


@dataclass(frozen=True)
class Declared:
    """A field as it was declared."""

    name: str
    kind: str
    """``string``, ``integer``, ``number``, ``boolean``, ``strings``, ``object``, ``moment``, ``span``, ``path`` or
    ``filter``; ``other`` is none."""
    type: Any
    """Without what was said about it."""
    choices: tuple[str, ...]
    default: Any
    about: About
    required: bool = False
    """Whether it is a parameter without a default."""


def declared(kind: type, names: Container[str] | None = None) -> dict[str, Declared]:
    """The fields of a dataclass by their names, in their order; `names` says which. None: all."""
    hints = get_type_hints(kind, include_extras=True)
    taken = [each for each in fields(kind) if names is None or each.name in names]
    return {each.name: _read(each.name, hints[each.name], _default(each)) for each in taken}


def _default(each: Field[Any]) -> Any:
    return None if each.default is MISSING else each.default


def declared_parameters(function: Callable[..., Any], without: Container[str]) -> dict[str, Declared]:
    """The parameters of a function by their names, in their order, without some and without those of ``**``."""
    hints, read = get_type_hints(function, include_extras=True), dict[str, Declared]()
    for name, each in signature(function).parameters.items():
        if name not in without and each.kind is not each.VAR_KEYWORD:
            required = each.default is each.empty
            field = _read(name, hints[name], None if required else each.default)
            read[name] = replace(field, required=required)
    return read


def _read(name: str, hint: Any, default: Any) -> Declared:
    plain, extras = (hint.__origin__, hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())
    parts = (
        [part for part in get_args(plain) if part is not NoneType] if get_origin(plain) in (Union, UnionType) else []
    )
    bare = parts[0] if len(parts) == 1 else plain
    choices = get_args(bare) if get_origin(bare) is Literal else ()
    kind = "string" if choices else _KINDS.get(bare, "other")
    kind = next((extra for extra in extras if isinstance(extra, str)), kind)
    about = next((extra for extra in extras if isinstance(extra, About)), About(""))
    return Declared(name, kind, plain, choices, default, about)
