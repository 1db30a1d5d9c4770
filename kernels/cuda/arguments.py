"""The argument structures of the CUDA kernels, as ``ctypes.Structure`` classes.

They are read from ``arguments.cuh``, which alone says what a kernel takes. A kernel receives its structure by value.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...engine.errors import ParameterError
from ..work import by_name

HEADER = Path(__file__).with_name("arguments.cuh")

SCALARS: dict[str, type[ctypes.c_int32] | type[ctypes.c_int64] | type[ctypes.c_double]] = {
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "double": ctypes.c_double,
}
ELEMENT_BYTES = {"u8": 1, "i32": 4, "u32": 4, "float": 4, "i64": 8, "double": 8, "void": 0}
ELEMENT_BYTES |= {"SegmentRow": 8, "Descriptor": 8, "Entry": 8}
"""Bytes of the element that a pointer points to; 0: any."""

_STRUCTURE = re.compile(r"^struct (\w+) \{\n(.*?)^\};$", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"\s*(?:const )?(\w+)(\*?) (\w+);\s*// \S.*")


@dataclass(frozen=True)
class Layout:
    """One structure of the header."""

    name: str
    structure: type[ctypes.Structure]
    fields: tuple[str, ...]  # in the header's order
    pointers: Mapping[str, int]  # bytes of an element, by field

    def fill(self, *sources: object, **own: torch.Tensor | float | None) -> ctypes.Structure:
        """The structure with tensors or None for pointers, numbers for scalars.

        A field's value is one of `own`, or the attribute of that name of the first source that has it. Raises
        `ParameterError`.
        """
        found = by_name(self.name, self.fields, sources, own)
        filled = {name: self._address(name, value) if name in self.pointers else value for name, value in found.items()}
        return self.structure(**filled)

    def _address(self, name: str, value: Any) -> int | None:
        if value is None:
            return None
        if not isinstance(value, torch.Tensor):
            raise ParameterError(f"{self.name}.{name} must be a tensor or None, not {value!r}")
        if not value.is_contiguous():
            raise ParameterError(f"{self.name}.{name}: the tensor is not contiguous")
        size = self.pointers[name]
        if size and value.element_size() != size:
            raise ParameterError(
                f"{self.name}.{name} points to elements of {size} bytes, got a tensor with elements of "
                f"{value.element_size()}"
            )
        return value.data_ptr()


def read_layouts(text: str) -> dict[str, Layout]:
    """The structures of a header, by name. Raises `ValueError` for a line that is no field with a comment."""
    layouts = {}
    for match in _STRUCTURE.finditer(text):
        name, body = match.groups()
        fields: list[tuple[str, Any]] = []
        pointers = {}
        for line in body.splitlines():
            field = _FIELD.fullmatch(line)
            known = field and field[1] in (ELEMENT_BYTES if field[2] else SCALARS)
            if field is None or not known:
                raise ValueError(f"{name}: not a field of a known type with a comment: {line!r}")
            if field[2]:
                pointers[field[3]] = ELEMENT_BYTES[field[1]]
            fields.append((field[3], ctypes.c_void_p if field[2] else SCALARS[field[1]]))
        structure = type(name, (ctypes.Structure,), {"_fields_": fields})
        layouts[name] = Layout(name, structure, tuple(field for field, _ in fields), pointers)
    return layouts


LAYOUTS = read_layouts(HEADER.read_text())
DERIVE = LAYOUTS["DeriveArguments"]
TABULATE = LAYOUTS["TabulateArguments"]
DESCRIBE = LAYOUTS["DescribeArguments"]
PLAN = LAYOUTS["PlanArguments"]
ORDER = LAYOUTS["OrderArguments"]
SCORE = LAYOUTS["ScoreArguments"]
SELECT = LAYOUTS["SelectArguments"]
