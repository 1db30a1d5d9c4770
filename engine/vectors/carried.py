"""Half-precision vectors as JSON values, bit by bit."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np

from .vectors import Halves

_HALF = np.dtype("<f2")


def halves_to_json(rows: Halves) -> dict[str, Any]:
    """``{"rows": n, "float16": base64 of the rows as little-endian half precision}``."""
    return {"rows": len(rows), "float16": base64.b64encode(rows.astype(_HALF, copy=False).tobytes()).decode()}


def halves_from_json(carried: Mapping[str, Any]) -> Halves:
    """The rows that `halves_to_json` gave. Raises `ValueError`."""
    try:
        data = base64.b64decode(carried["float16"], validate=True)
        return np.frombuffer(data, _HALF).astype(np.float16).reshape(carried["rows"], -1)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise ValueError(
            "must be numbers, or an object whose 'float16' is base64 of 'rows' rows of half-precision numbers"
        ) from None
