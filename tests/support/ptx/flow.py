"""The flow of a kernel in PTX: what its instructions read and write, its blocks, where each address comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from . import parse as ptx


@dataclass
class Step:
    """An instruction of a block."""

    line: int
    text: str
    opcode: str
    guard: str | None
    writes: list[str]
    reads: list[str]
    block: int = 0

    def named(self, *names: str) -> bool:
        return self.opcode.split(".")[0] in names

    @property
    def address(self) -> str:
        """The register of the memory operand."""
        found = re.search(r"\[\s*([%\w]+)", self.text)
        assert found is not None, self.text
        return found[1]

    @property
    def is_barrier(self) -> bool:
        return self.opcode.startswith(("bar.sync", "bar.red", "barrier", "bar.arrive"))


@dataclass
class Flow:
    steps: list[Step]
    successors: list[list[int]]  # of each block of steps
    pointers: set[str]  # names of the parameters that are addresses
    threads: int
    definitions: dict[str, list[Step]] = field(default_factory=dict)

    def of_block(self, block: int) -> list[Step]:
        return [each for each in self.steps if each.block == block]


def flow_of(text: str) -> Flow:
    """The flow of the only kernel of a PTX text."""
    (kernel,) = ptx.parse(text).kernels.values()
    assert kernel.threads, "the kernel does not say how many threads a block has"
    steps: list[Step] = []
    labels: dict[str, int] = {}
    starts: set[int] = {0}
    for each in kernel.body:
        if each.opcode:
            steps.append(_step(each))
        else:
            labels[each.label] = len(steps)
        if not each.opcode or steps[-1].named("bra", "ret", "exit"):
            starts.add(len(steps))
    begins = sorted(start for start in starts if start < len(steps))
    block_of = {start: number for number, start in enumerate(begins)}
    number = -1
    for place, step in enumerate(steps):
        number += place in block_of
        step.block = number
    successors: list[list[int]] = []
    for block, end in enumerate([*begins[1:], len(steps)]):
        last = steps[end - 1]
        following = [block + 1] if block + 1 < len(begins) else []
        if last.named("ret", "exit"):
            assert last.guard is None, last.text
            following = []
        elif last.named("bra"):
            found = re.search(r"\$\w+", last.text)
            assert found is not None, last.text
            target = block_of[labels[found[0]]]
            following = [target] if last.guard is None else [*following, target]
        successors.append(following)
    flow = Flow(steps, successors, {each.name for each in kernel.parameters if each.is_pointer}, kernel.threads)
    for step in steps:
        for name in step.writes:
            flow.definitions.setdefault(name, []).append(step)
    return flow


def _step(each: ptx.Instruction) -> Step:
    kind, operands = each.opcode.split(".")[0], each.operands
    nothing = kind in ("bra", "ret", "exit", "bar", "barrier", "fence", "membar") or not operands
    written = () if nothing or operands[0].startswith("[") else operands[:1]
    writes = [name for operand in written for name in re.findall(r"%\w+|\b_\b", operand)]
    reads = [name for own in operands[len(written) :] for name in re.findall(r"%[\w.]+|(?<![\w$.])-?\d\w*", own)]
    return Step(each.line, each.text(), each.opcode, f"%{each.guard}" if each.guard else None, writes, reads)


def written(flow: Flow) -> set[str]:
    """What the kernel writes: parameters by name; ``*name`` stands for what the addresses in a parameter point to."""
    bases = bases_of(flow)
    found: set[str] = set()
    for each in flow.steps:
        if each.opcode.startswith(("st.global", "red.global", "atom.global", "st.volatile.global")) or (
            each.named("st", "red", "atom") and "shared" not in each.opcode
        ):
            base = bases.get(each.address, frozenset())
            assert base, f"line {each.line}: {each.text}: no parameter is known to lead to this address"
            found |= base
    return found


def bases_of(flow: Flow) -> dict[str, frozenset[str]]:
    """The parameters that each register, read as an address, may point into."""
    bases: dict[str, frozenset[str]] = {}
    changed = True
    while changed:
        changed = False
        for each in flow.steps:
            if not each.writes:
                continue
            base = _base(flow, each, bases)
            for name in each.writes:
                if not base <= bases.get(name, frozenset()):
                    bases[name] = bases.get(name, frozenset()) | base
                    changed = True
    return bases


def _base(flow: Flow, each: Step, bases: dict[str, frozenset[str]]) -> frozenset[str]:
    if each.opcode.startswith("ld.param"):
        return frozenset({each.address} & flow.pointers)
    if each.opcode.startswith("ld.global") and re.search(r"[bu]64", each.opcode):
        return frozenset("*" + base.lstrip("*") for base in bases.get(each.address, frozenset()))
    if each.named("mad"):
        sources = each.reads[2:3]
    elif each.named("add", "sub", "mov", "cvt", "cvta", "selp", "or"):
        sources = each.reads
    else:
        return frozenset()
    known = [bases[name] for name in sources if name in bases]
    together = frozenset().union(*known)
    # An index that was loaded is no address where a parameter is added to it.
    return frozenset(base for base in together if not base.startswith("*")) or together
