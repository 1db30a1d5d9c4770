"""What a dataclass declares of its fields: the type, the bounds and one line on each, from which every door is made.

A field is ``name: Annotated[type, About("One line.")] = default``. The server's schemas, the tools of a model and the
options of the command line read it here.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from .checks import About

_KINDS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", Sequence[str]: "strings"}


@dataclass(frozen=True)
class Declared:
    """A field as it was declared."""

    name: str
    kind: str
    """``string``, ``integer``, ``number``, ``boolean``, ``strings``, ``moment`` or ``span``; ``other`` is none."""
    type: Any
    """Without what was said about it."""
    choices: tuple[str, ...]
    default: Any
    about: About


def declared(kind: type, names: Container[str] | None = None) -> dict[str, Declared]:
    """The fields of a dataclass by their names, in their order; `names` says which. None: all."""
    hints = get_type_hints(kind, include_extras=True)
    taken = [each for each in fields(kind) if names is None or each.name in names]
    return {each.name: _read(each.name, hints[each.name], each.default) for each in taken}


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
