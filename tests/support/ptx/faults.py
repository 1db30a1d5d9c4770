"""Faults planted in PTX: one instruction of a kernel changed or left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .parse import Instruction, Kernel, Module


def _flipped(instruction: Instruction) -> Instruction | None:
    """A shuffle over another distance."""
    if not instruction.opcode.startswith("shfl.sync"):
        return None
    into, value, distance, *rest = instruction.operands
    other = str(int(distance) ^ 3) if distance.isdigit() else "3"
    return replace(instruction, operands=(into, value, other, *rest))


def _unguarded(instruction: Instruction) -> Instruction | None:
    """A branch or an access that all threads take."""
    return replace(instruction, guard="", guard_is_negated=False) if instruction.guard else None


def _without(opcode: str) -> Callable[[Instruction], Instruction | None]:
    def left_out(instruction: Instruction) -> Instruction | None:
        # A fence does nothing here.
        return replace(instruction, opcode="fence", operands=()) if instruction.opcode.startswith(opcode) else None

    return left_out


def _shifted(instruction: Instruction) -> Instruction | None:
    """A shift by one bit more."""
    if not instruction.opcode.startswith(("shl", "shr")) or not instruction.operands[2].isdigit():
        return None
    return replace(instruction, operands=(*instruction.operands[:2], str(int(instruction.operands[2]) + 1)))


def _uncarried(instruction: Instruction) -> Instruction | None:
    if not instruction.opcode.startswith(("addc", "subc")):
        return None
    return replace(instruction, opcode=instruction.opcode.replace("addc", "add").replace("subc", "sub"))


FAULTS: dict[str, Callable[[Instruction], Instruction | None]] = {
    "a flipped shuffle distance": _flipped,
    "a dropped predicate": _unguarded,
    "a dropped barrier": _without("bar.sync"),
    "a dropped atomic": _without("atom"),
    "a changed shift": _shifted,
    "a dropped carry": _uncarried,
}
"""What each makes of an instruction, None where it does not apply."""


def places(kernel: Kernel, name: str) -> list[int]:
    """The instructions of the kernel that the fault can change."""
    return [place for place, each in enumerate(kernel.body) if each.opcode and FAULTS[name](each) is not None]


def planted(module: Module, kernel: str, name: str, place: int) -> Module:
    """The module with the fault at one place of a kernel."""
    own = module.kernels[kernel]
    body = list(own.body)
    changed = FAULTS[name](body[place])
    assert changed is not None
    body[place] = changed
    return replace(module, kernels={**module.kernels, kernel: replace(own, body=body)})
