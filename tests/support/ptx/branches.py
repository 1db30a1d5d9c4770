"""Which branches of a kernel its threads may take apart, read from PTX.

A barrier pairs whatever arrives. Where the warps of a block disagree about a branch around one, the barriers of two
turns of a loop meet: sums of two queries in one slab, or a hang. No interpreter that runs a program at a time can show
this. So every branch that has a barrier between its sides must be decided alike by all threads of the block.

`findings` proves so, register by register: for each bit of a value it keeps the bits of the thread's number that it
may depend on. Loads from memory that nothing writes during the launch depend on their address alone. Loads from memory
that the launch writes depend on when they are made, and so on every bit. A butterfly takes a bit out, a reduction over
a warp five; what lies in shared memory behind a barrier is the same for all.

The kernel's parameters are taken not to overlap, and what a kernel writes is what its own st, atom and red address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .flow import Flow, Step, bases_of, flow_of, written

LANES = 31
EVERY = (1 << 10) - 1
"""All bits of a thread's number; a block has at most 1,024 threads."""
WIDTHS = {"%p": 1, "%rs": 16, "%r": 32, "%rd": 64, "%f": 32, "%fd": 64}
COMMUTATIVE = ("add", "max", "min", "or", "and", "xor", "mul")
WARP_WIDE = ("shfl", "redux", "vote", "match", "bar.warp", "activemask")

Bits = tuple[int, ...]


class _Dependence(NamedTuple):
    """What the bits of a value depend on."""

    bits: Bits
    origins: frozenset[int]
    """Places of the instructions that it comes from."""

    def joined(self, other: _Dependence) -> _Dependence:
        if other is self or other == self:
            return self
        bits = tuple(a | b for a, b in zip(self.bits, other.bits, strict=True))
        return _Dependence(bits, self.origins | other.origins)


@dataclass
class Finding:
    """A branch that threads may take apart though a barrier lies between its sides."""

    line: int
    text: str
    barrier: int
    """Its line."""
    because: list[str]
    """The loads and thread numbers that the condition depends on."""

    def __str__(self) -> str:
        reasons = "; ".join(self.because)
        return f"line {self.line}: {self.text}: around the barrier of line {self.barrier}, decided by {reasons}"


def findings(ptx: str) -> list[Finding]:
    """Every branch that threads of a block may take apart, with a barrier between its sides.

    Where lanes of one warp may part, a shuffle or a reduction of the warp between the sides counts as a barrier.
    """
    flow = flow_of(ptx)
    analysis = _Analysis(flow)
    analysis.run()
    found = []
    for branch, region in analysis.parted():
        inside = [each for each in flow.steps if each.block in region]
        barriers = [each for each in inside if each.is_barrier]
        condition = analysis.conditions[flow.steps.index(branch)]
        if any(bits & LANES for bits in condition.bits):
            barriers += [each for each in inside if each.opcode.startswith(WARP_WIDE)]
        if barriers:
            because = [flow.steps[place] for place in sorted(condition.origins)]
            reasons = [f"{each.text} (line {each.line})" for each in because]
            found.append(Finding(branch.line, branch.text, min(each.line for each in barriers), reasons))
    return found


class _Analysis:
    """What each register depends on. Of one that is written in several places, this is known at each place."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.conditions: dict[int, _Dependence] = {}
        """Of each branch, by its place."""
        self._settled: dict[str, _Dependence] = {}
        self._begins: list[dict[str, _Dependence]] = [{} for _ in flow.successors]
        self._now: dict[str, _Dependence] = {}
        self._bases = bases_of(flow)
        self._written = written(flow)
        self._unsettled = _unsettled(flow)
        self._blocks = [flow.of_block(block) for block in range(len(flow.successors))]
        self._places = {id(each): place for place, each in enumerate(flow.steps)}
        meeting = _meeting(flow)
        self._regions = {
            place: _between(flow, each.block, meeting[each.block])
            for place, each in enumerate(flow.steps)
            if each.named("bra") and each.guard
        }
        self._mask = (1 << max(0, flow.threads - 1).bit_length()) - 1

    def run(self) -> None:
        """To the least fixed point; what parted threads define depends on what parted them."""
        changed = True
        while changed:
            changed = False
            parting: dict[int, tuple[int, frozenset[int]]] = {}
            for branch, region in self.parted():
                condition = self.conditions[self._places[id(branch)]]
                for block in region:
                    old = parting.get(block, (0, frozenset()))
                    parting[block] = (old[0] | _union(condition.bits), old[1] | condition.origins)
            for block, instructions in enumerate(self._blocks):
                self._now = dict(self._begins[block])
                for each in instructions:
                    changed |= self._step(each, *parting.get(block, (0, frozenset())))
                for other in self.flow.successors[block]:
                    begins = self._begins[other]
                    for name, value in self._now.items():
                        together = value if name not in begins else value.joined(begins[name])
                        if begins.get(name) != together:
                            begins[name] = together
                            changed = True

    def _step(self, each: Step, control: int, because: frozenset[int]) -> bool:
        """Whether more is known afterwards."""
        changed = False
        if each.guard:
            guard = self._of(each.guard)
            control, because = control | _union(guard.bits), because | guard.origins
            if each.named("bra"):
                changed = self.conditions.get(self._places[id(each)]) != guard
                self.conditions[self._places[id(each)]] = guard
        for name, bits, origins in self._results(each):
            masked = tuple((bit | control) & self._mask for bit in bits)
            value = _Dependence(masked, origins | because if any(masked) else frozenset())
            if len(self.flow.definitions[name]) > 1:
                self._now[name] = value if not each.guard else value.joined(self._of(name, len(bits)))
            else:
                value = value.joined(self._of(name, len(bits)))
                changed |= self._settled.get(name) != value
                self._settled[name] = value
        return changed

    def _of(self, name: str, width: int = 0) -> _Dependence:
        value = self._now.get(name) or self._settled.get(name)
        return value or _Dependence((0,) * width, frozenset())

    def parted(self) -> Iterator[tuple[Step, set[int]]]:
        """The branches that threads may take apart, and the blocks before their sides meet again."""
        for place, region in self._regions.items():
            if place in self.conditions and _union(self.conditions[place].bits):
                yield self.flow.steps[place], region

    def _value(self, name: str, width: int) -> Bits:
        if name == "%tid.x":
            return tuple(1 << bit if bit < 10 else 0 for bit in range(width))
        if name in ("%laneid", "%warpid", "%tid.y", "%tid.z") or name.startswith("%lanemask"):
            return (EVERY,) * width
        return (self._of(name).bits + (0,) * width)[:width]

    def _results(self, each: Step) -> list[tuple[str, Bits, frozenset[int]]]:
        if not each.writes:
            return []
        place = frozenset({self._places[id(each)]})
        reads = frozenset().union(*(self._of(name).origins for name in each.reads))
        if each.named("atom"):
            return [(name, (EVERY,) * _width(name), place) for name in each.writes]
        if each.named("ld", "ldmatrix"):
            return self._loaded(each, place, reads)
        if any(name.startswith("%tid") or name == "%laneid" for name in each.reads):
            reads |= place
        if each.opcode == "mov.b64" and len(each.writes) == 2:
            whole = self._value(each.reads[0], 64)
            halves = zip(each.writes, (whole[:32], whole[32:]), strict=True)
            return [(name, bits, reads) for name, bits in halves if name != "_"]
        found = []
        for name in each.writes:
            width = _width(name)
            found.append((name, self._computed(each, width), reads))
        return found

    def _loaded(
        self, each: Step, place: frozenset[int], reads: frozenset[int]
    ) -> list[tuple[str, Bits, frozenset[int]]]:
        space = each.opcode
        bits, origins = 0, frozenset[int]()
        if space.startswith("ld.param"):
            pass
        elif "shared" in space:
            unsettled = self._places[id(each)] in self._unsettled
            address = self._of(each.address)
            bits = EVERY if unsettled else _union(address.bits)
            if each.named("ldmatrix"):
                # What a lane gets lies at the addresses of others.
                bits |= LANES
            origins = place if unsettled else address.origins
        else:
            base = self._bases.get(each.address, frozenset())
            mutable = not base or bool(base & self._written)
            bits = EVERY if mutable else _union(self._of(each.address).bits)
            origins = place if mutable else reads
        return [(name, (bits,) * _width(name), origins) for name in each.writes]

    def _computed(self, each: Step, width: int) -> Bits:
        """The bits of a result that no memory is read for."""
        kind, reads = each.opcode.split(".")[0], each.reads
        exchanged = self._butterfly(each)
        if exchanged is not None:
            name, bit = exchanged
            value = self._value(name, width)
            whole = _rising([value]) if kind in ("add", "mul") else (_union(value),) * width
            return tuple(bits & ~bit for bits in whole)
        if kind == "shfl":
            value = _union(self._value(reads[0], 64))
            if ".bfly" in each.opcode:
                return (value,) * width
            if ".idx" in each.opcode and _constant(reads[1]) is not None:
                return (value & ~LANES,) * width
            return ((value | LANES) if value or ".idx" in each.opcode else 0,) * width
        values = [self._value(name, max(width, 64)) for name in reads]
        everything = _union([_union(value) for value in values])
        if kind in ("redux", "vote"):
            return (everything & ~LANES,) * width
        if each.opcode == "mov.b64" and len(reads) == 2:
            return self._value(reads[0], 32) + self._value(reads[1], 32)
        if any(part in each.opcode for part in (".f64", ".f32", ".f16")):
            return values[0][:width] if kind == "mov" else (everything,) * width
        return _integer(each, [value[: _read_width(each, width)] for value in values], everything, width)

    def _butterfly(self, each: Step) -> tuple[str, int] | None:
        """x and the distance of ``op(x, butterfly of x)``."""
        if not each.named(*COMMUTATIVE) or len(each.reads) != 2:
            return None
        for name, other in (each.reads, each.reads[::-1]):
            exchanged = self._exchanged(other)
            if exchanged is not None and exchanged[0] == name:
                return exchanged
        return None

    def _exchanged(self, name: str) -> tuple[str, int] | None:
        """What a register is the butterfly of, by 32 bits or in two halves."""
        only = self._only(name)
        if only is None:
            return None
        if only.named("shfl") and ".bfly" in only.opcode:
            distance = _constant(only.reads[1])
            if distance is None or distance & (distance - 1) or self._only(only.reads[0]) is None:
                return None
            return only.reads[0], distance
        packed = self._packed(only)
        if packed is None:
            return None
        low, high = (self._exchanged(half) for half in packed)
        if low is None or high is None or low[1] != high[1]:
            return None
        whole = self._half(low[0], 0)
        if whole is None or whole != self._half(high[0], 1) or self._only(whole) is None:
            return None
        return whole, low[1]

    def _packed(self, only: Step) -> tuple[str, str] | None:
        """The low and the high half that a 64-bit register is made of."""
        if only.opcode == "mov.b64" and len(only.reads) == 2:
            return only.reads[0], only.reads[1]
        if only.opcode != "or.b64":
            return None
        parts: dict[bool, str] = {}
        for name in only.reads:
            part = self._only(name)
            shifted = part is not None and part.opcode == "shl.b64" and part.reads[1] == "32"
            if part is not None and shifted:
                part = self._only(part.reads[0])
            if part is None or part.opcode != "cvt.u64.u32":
                return None
            parts[shifted] = part.reads[0]
        return (parts[False], parts[True]) if len(parts) == 2 else None

    def _half(self, name: str, place: int) -> str | None:
        """The 64-bit register of which this one is the low (0) or high (1) half."""
        only = self._only(name)
        if only is None:
            return None
        if only.opcode == "mov.b64" and len(only.writes) == 2 and only.writes[place] == name:
            return only.reads[0]
        if only.opcode == "cvt.u32.u64" and place == 0:
            return only.reads[0]
        if only.opcode == "cvt.u32.u64":
            shifted = self._only(only.reads[0])
            if shifted is not None and shifted.opcode in ("shr.u64", "shr.s64") and shifted.reads[1] == "32":
                return shifted.reads[0]
        return None

    def _only(self, name: str) -> Step | None:
        found = self.flow.definitions.get(name, [])
        return found[0] if len(found) == 1 else None


def _integer(each: Step, values: list[Bits], everything: int, width: int) -> Bits:
    """The bits that an integer operation takes from its operands' bits."""
    kind, reads = each.opcode.split(".")[0], each.reads
    if kind in ("and", "or", "xor", "not"):
        masks = [_constant(name) for name in reads]
        kept = next((mask for mask in masks if mask is not None), -1) if kind == "and" else -1
        return tuple(_union([value[bit] for value in values]) if kept >> bit & 1 else 0 for bit in range(width))
    if kind in ("shl", "shr") and _constant(reads[1]) is not None:
        distance, value = int(_constant(reads[1]) or 0), values[0]
        if kind == "shl":
            return ((0,) * distance + value)[:width]
        top = value[-1] if ".s" in each.opcode else 0
        return (value[distance:] + (top,) * width)[:width]
    if kind in ("add", "sub") or (kind in ("mad", "mul") and ".hi" not in each.opcode):
        return _rising([(value + (_union(value),) * width)[:width] for value in values])
    if kind == "mov":
        # An address of shared memory is the same for all.
        return (*(values[0] if values else ()), *(0,) * width)[:width]
    if kind in ("cvt", "cvta"):
        top = values[0][-1] if re.search(r"\.s\d+$", each.opcode) else 0
        return (values[0] + (top,) * width)[:width]
    if kind == "bfe" and _constant(reads[1]) is not None and _constant(reads[2]) is not None:
        begin, length = int(_constant(reads[1]) or 0), int(_constant(reads[2]) or 0)
        return (values[0][begin : begin + length] + (0,) * width)[:width]
    if kind == "selp":
        chosen = _union(values[2])
        return tuple(a | b | chosen for a, b in zip(values[0], values[1], strict=True))
    return (everything,) * width


def _read_width(each: Step, width: int) -> int:
    """The bits of an integer operation's operands."""
    found = re.findall(r"\.[usb](\d+)", each.opcode)
    return int(found[-1]) if found else width


def _rising(values: Sequence[Bits]) -> Bits:
    """A bit of a sum or of a product depends on the bits at and below it."""
    bits, found = 0, []
    for column in zip(*values, strict=True):
        bits |= _union(column)
        found.append(bits)
    return tuple(found)


def _union(bits: Sequence[int]) -> int:
    together = 0
    for each in bits:
        together |= each
    return together


def _width(name: str) -> int:
    return WIDTHS[name.rstrip("0123456789")] if name != "_" else 32


def _constant(name: str) -> int | None:
    return int(name.rstrip("U"), 0) if re.fullmatch(r"-?(0x[\dA-F]+|\d+)U?", name) else None


def _unsettled(flow: Flow) -> set[int]:
    """Places of the loads from shared memory that a store may precede with no barrier between."""
    begins: list[bool] = [False] * len(flow.successors)
    found: set[int] = set()
    changed = True
    while changed:
        changed = False
        for block, following in enumerate(flow.successors):
            dirty = begins[block]
            for place, each in enumerate(flow.steps):
                if each.block != block:
                    continue
                if each.is_barrier or (each.opcode == "bar.warp.sync" and flow.threads <= 32):
                    dirty = False
                elif each.named("st", "stmatrix", "atom", "red") and "shared" in each.opcode:
                    dirty = True
                elif dirty and each.named("ld", "ldmatrix") and "shared" in each.opcode:
                    found.add(place)
            for other in following:
                if dirty and not begins[other]:
                    begins[other] = changed = True
    return found


def _between(flow: Flow, block: int, meeting: int) -> set[int]:
    """The blocks on the ways from a branch to where all its ways meet."""
    found: set[int] = set()
    waiting = list(flow.successors[block])
    while waiting:
        other = waiting.pop()
        if other != meeting and other not in found:
            found.add(other)
            waiting += flow.successors[other]
    return found


def _meeting(flow: Flow) -> list[int]:
    """Of each block the first block that all ways from it to the end go through; the number of blocks is the end."""
    end = len(flow.successors)
    after = [set(range(end + 1)) for _ in range(end)] + [{end}]
    changed = True
    while changed:
        changed = False
        for block in reversed(range(end)):
            following = flow.successors[block] or [end]
            common = set.intersection(*(after[other] for other in following)) | {block}
            if common != after[block]:
                after[block] = common
                changed = True
    return [
        next(other for other in after[block] - {block} if after[block] - {block} == after[other])
        for block in range(end)
    ]
