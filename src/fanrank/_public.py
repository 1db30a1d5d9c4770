"""Gives public classes and functions the name that users import them by."""

from __future__ import annotations

import sys
from types import FunctionType


def publish(module: str) -> None:
    """Make `module` the home of every class and function in its ``__all__``.

    ``__module__`` and ``__qualname__`` are what tracebacks, ``help`` and pickle show or look up. The values of
    ``__all__`` are defined elsewhere, in a module whose name may change, so both are set to the public path.
    """
    face = vars(sys.modules[module])
    for name in face["__all__"]:
        value = face[name]
        if isinstance(value, (type, FunctionType)):
            if isinstance(value, type):
                _resolve_annotations(value)
            value.__module__, value.__name__, value.__qualname__ = module, name, name


def _resolve_annotations(kind: type) -> None:
    """Replace the annotations of the class that are text by what they say.

    `typing.get_type_hints` reads such a text in the namespace of the class's ``__module__``, which after `publish` is
    not the module that the text was written for. A text that cannot be read at run time stays.
    """
    namespace = vars(sys.modules[kind.__module__])
    annotations = vars(kind).get("__annotations__", {})
    for name, text in annotations.items():
        if isinstance(text, str):
            try:
                annotations[name] = eval(text, namespace)
            except NameError:  # imported for type checkers alone
                continue
