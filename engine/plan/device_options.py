"""What a caller may choose of the kernels on a device."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..errors import ParameterError

POSTING_BYTES = (8, 4)
SELECT = ("auto", "bitonic")


@dataclass(frozen=True)
class DeviceOptions:
    """Options of the kernels on a device; None leaves one to the family of kernels. None changes an answer.

    `posting_bytes`, 8 or 4, are the bytes of a posting in device memory. 4 are for segments whose postings are of at
    most 4,096 kinds (frequency and length); a search of others raises `ParameterError`. `tile_bits`
    says how many documents are scored together: ``2**tile_bits``. `select` is how the best are found: ``bitonic`` sorts
    in shared memory, ``auto`` has warps keep lists in registers up to k = 128. Raises `ParameterError`.
    """

    posting_bytes: int | None = None
    tile_bits: int | None = None
    select: str | None = None

    def __post_init__(self) -> None:
        given, bits = self.posting_bytes, self.tile_bits
        if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given not in POSTING_BYTES):
            raise ParameterError(f"posting_bytes must be one of {', '.join(map(str, POSTING_BYTES))}, not {given!r}")
        if bits is not None and (isinstance(bits, bool) or not isinstance(bits, int)):
            raise ParameterError(f"tile_bits must be an integer, not {bits!r}")
        if self.select is not None and (not isinstance(self.select, str) or self.select not in SELECT):
            raise ParameterError(f"select must be one of {', '.join(SELECT)}, not {self.select!r}")

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the options that are not None."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is not None)

    def check(self, family: str, available: tuple[str, ...]) -> None:
        """Raises `ParameterError` for an option that is given and that `family` does not know."""
        unknown = [name for name in self.given if name not in available]
        if unknown:
            has = f"it has: {', '.join(available)}" if available else "such options are of a device"
            raise ParameterError(f"backend {family!r} has no option {unknown[0]}; {has}")


FAMILY = DeviceOptions()
"""All options left to the family of kernels."""
