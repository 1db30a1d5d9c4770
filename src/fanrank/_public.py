"""Sets the names of public classes and functions to the names that users import."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FunctionType


def publish(module: str, names: Sequence[str] | None = None) -> None:
    """Make `module` the home of the classes and functions of these names; None: of all in its ``__all__``.

    Tracebacks, ``help`` and pickle use ``__module__`` and ``__qualname__``. The values are defined in other
    modules, whose names may change. So both attributes are set to the public path.
    """
    namespace = vars(sys.modules[module])
    for name in namespace["__all__"] if names is None else names:
        value = namespace[name]
        if isinstance(value, (type, FunctionType)):
            if isinstance(value, type):
                _resolve_annotations(value)
            value.__module__, value.__name__, value.__qualname__ = module, name, name


def _resolve_annotations(kind: type) -> None:
    """Replace the class's annotations that are strings by their values.

    `typing.get_type_hints` evaluates such a string in the namespace of the class's ``__module__``. After `publish`,
    that is not the module in which the string was written. A string that cannot be evaluated at run time stays.
    """
    namespace = vars(sys.modules[kind.__module__])
    annotations = vars(kind).get("__annotations__", {})
    for name, text in annotations.items():
        if isinstance(text, str):
            try:
                annotations[name] = eval(text, namespace)
            except NameError:  # a name that is imported for type checkers alone
                continue
