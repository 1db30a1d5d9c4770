"""PTX, read: the instructions of a kernel, their blocks, and the parameters that each address comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Instruction:
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
class Kernel:
    instructions: list[Instruction]
    successors: list[list[int]]  # of each block of instructions
    pointers: set[str]  # names of the parameters that are addresses
    threads: int
    definitions: dict[str, list[Instruction]] = field(default_factory=dict)

    def of_block(self, block: int) -> list[Instruction]:
        return [each for each in self.instructions if each.block == block]


def parse(ptx: str) -> Kernel:
    """The only kernel of a PTX text."""
    threads = re.search(r"\.reqntid (\d+)", ptx) or re.search(r"\.maxntid (\d+)", ptx)
    assert threads is not None, "the kernel does not say how many threads a block has"
    pointers = set(re.findall(r"\.param \.u64 \.ptr[^\n]*?(\w+_param_\d+)", ptx))
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    starts: set[int] = {0}
    begun = False
    for line, raw in enumerate(ptx.splitlines(), 1):
        text = raw.split("//")[0].strip()
        if text == "{":
            begun = True
        elif not begun or not text or text.startswith((".", "}")):
            if begun and text == "}":
                break
        elif re.fullmatch(r"\$\w+:", text):
            labels[text[:-1]] = len(instructions)
            starts.add(len(instructions))
        else:
            # Half of a 64-bit register may go to a register that is declared on the spot, in braces.
            for part in (part.strip().removeprefix("{").lstrip() for part in text.split(";")):
                if part in ("", "}") or part.startswith(".reg"):
                    continue
                instructions.append(_instruction(line, re.sub(r"\btmp\b", "_", part)))
                if instructions[-1].named("bra", "ret", "exit"):
                    starts.add(len(instructions))
    return _with_blocks(instructions, labels, sorted(starts), pointers, int(threads[1]))


def _instruction(line: int, text: str) -> Instruction:
    found = re.match(r"(?:@(!?%p\d+)\s+)?([\w.:]+)\s*(.*)$", text)
    assert found is not None, f"line {line}: {text}"
    guard, opcode, rest = found[1], found[2], found[3]
    operands = _operands(rest)
    kind = opcode.split(".")[0]
    nothing = kind in ("bra", "ret", "exit", "bar", "barrier", "fence", "membar") or operands[:1] == []
    written = [] if nothing or operands[0].startswith("[") else operands[:1]
    read = operands[len(written) :]
    writes = [name for operand in written for name in re.findall(r"%\w+|\b_\b", operand)]
    reads = [name for operand in read for name in re.findall(r"%[\w.]+|(?<![\w$.])-?\d\w*", operand)]
    return Instruction(line, text, opcode, guard.lstrip("!") if guard else None, writes, reads)


def _operands(text: str) -> list[str]:
    """Separated by the commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _with_blocks(
    instructions: list[Instruction], labels: dict[str, int], starts: Sequence[int], pointers: set[str], threads: int
) -> Kernel:
    begins = [start for start in starts if start < len(instructions)]
    block_of = {start: number for number, start in enumerate(begins)}
    number = -1
    for place, each in enumerate(instructions):
        number += place in block_of
        each.block = number
    successors: list[list[int]] = []
    for block, begin in enumerate(begins):
        end = begins[block + 1] if block + 1 < len(begins) else len(instructions)
        last = instructions[end - 1] if end > begin else None
        following = [block + 1] if block + 1 < len(begins) else []
        if last is not None and last.named("ret", "exit"):
            assert last.guard is None, last.text
            following = []
        elif last is not None and last.named("bra"):
            found = re.search(r"\$\w+", last.text)
            assert found is not None, last.text
            target = block_of[labels[found[0]]]
            following = [target] if last.guard is None else [*following, target]
        successors.append(following)
    kernel = Kernel(instructions, successors, pointers, threads)
    for each in instructions:
        for name in each.writes:
            kernel.definitions.setdefault(name, []).append(each)
    return kernel


def written(kernel: Kernel) -> set[str]:
    """What the kernel writes: parameters by name; ``*name`` stands for what the addresses in a parameter point to."""
    bases = bases_of(kernel)
    found: set[str] = set()
    for each in kernel.instructions:
        if each.opcode.startswith(("st.global", "red.global", "atom.global", "st.volatile.global")) or (
            each.named("st", "red", "atom") and "shared" not in each.opcode
        ):
            base = bases.get(each.address, frozenset())
            assert base, f"line {each.line}: {each.text}: no parameter is known to lead to this address"
            found |= base
    return found


def bases_of(kernel: Kernel) -> dict[str, frozenset[str]]:
    """The parameters that each register, read as an address, may point into."""
    bases: dict[str, frozenset[str]] = {}
    changed = True
    while changed:
        changed = False
        for each in kernel.instructions:
            if not each.writes:
                continue
            base = _base(kernel, each, bases)
            for name in each.writes:
                if not base <= bases.get(name, frozenset()):
                    bases[name] = bases.get(name, frozenset()) | base
                    changed = True
    return bases


def _base(kernel: Kernel, each: Instruction, bases: dict[str, frozenset[str]]) -> frozenset[str]:
    if each.opcode.startswith("ld.param"):
        return frozenset({each.address} & kernel.pointers)
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
