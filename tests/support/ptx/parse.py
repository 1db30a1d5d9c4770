"""PTX text to modules, kernels and instructions."""

import re
from dataclasses import dataclass, field


class PtxError(Exception):
    """PTX that is not known here; the message has its text and its line."""


SIZES = {"pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2}
SIZES |= dict.fromkeys(("b32", "u32", "s32", "f32"), 4) | dict.fromkeys(("b64", "u64", "s64", "f64"), 8)
"""Bytes of each type; a predicate takes one here."""


@dataclass(frozen=True)
class Instruction:
    """One statement of a kernel: an instruction, or a label where `opcode` is empty."""

    line: int
    opcode: str  # with its modifiers, "" for a label
    operands: tuple[str, ...]  # as written, vectors and addresses in their brackets
    guard: str = ""  # the predicate's register
    guard_is_negated: bool = False
    label: str = ""
    source: tuple[int, int] = (0, 0)  # file number and line of the last .loc, where it was asked for

    def text(self) -> str:
        guard = f"@{'!' * self.guard_is_negated}{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".strip()


@dataclass(frozen=True)
class Variable:
    """A .shared, .global, .const or .local variable, or a parameter."""

    space: str
    name: str
    type: str
    count: int = 1  # elements; 0 for an extern array without a size
    align: int = 1
    values: tuple[str, ...] = ()
    is_pointer: bool = False

    @property
    def size(self) -> int:
        return self.count * SIZES[self.type]


@dataclass
class Kernel:
    name: str
    parameters: list[Variable]
    registers: dict[str, str] = field(default_factory=dict)  # name without %: its type
    locals: list[Variable] = field(default_factory=list)
    body: list[Instruction] = field(default_factory=list)
    threads: int = 0  # of a block at most, 0 where it is not said


@dataclass
class Module:
    target: str
    variables: dict[str, Variable]
    kernels: dict[str, Kernel]


_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_VARIABLE = re.compile(
    r"(?:\.visible |\.extern |\.weak |\.common )?\.(?P<space>global|shared|const|local|param)"
    r"(?: \.attribute\([^)]*\))?(?: \.align (?P<first>\d+))? \.(?P<type>\w+)"
    r"(?P<pointer> \.ptr(?: \.(?:global|shared|const|local))?(?: \.align \d+)?)?"
    r"(?: \.align \d+)? (?P<name>[\w$]+)(?P<array>\[(?P<count>\d*)\])?(?: ?= ?(?P<values>.+))?"
)
_REGISTERS = re.compile(r"\.reg \.(?P<type>\w+) (?P<names>.+)")
_GUARD = re.compile(r"@(?P<not>!?)%(?P<name>[\w$]+)\s+")
_IGNORED = (".version", ".address_size", ".pragma", ".file", ".section")
_BOUNDS = (".maxntid", ".minnctapersm", ".reqntid", ".maxnreg", ".maxnctapersm")


def parse(text: str) -> Module:
    """The module of a PTX text. Raises `PtxError` for a statement whose form is not known."""
    # A comment becomes blanks, so that lines keep their numbers.
    text = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return _Parser(text).module()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._source = (0, 0)

    def module(self) -> Module:
        module = Module("", {}, {})
        while statement := self._statement():
            if statement.startswith(".target"):
                module.target = statement.split()[1].rstrip(",")
            elif statement.startswith((".visible .entry", ".entry")):
                kernel = self._kernel(statement)
                module.kernels[kernel.name] = kernel
            elif not statement.startswith(_IGNORED):
                variable = self._variable(statement)
                module.variables[variable.name] = variable
        return module

    def _error(self, what: str) -> PtxError:
        return PtxError(f"line {self._line}: {what}")

    def _statement(self) -> str:
        """The next statement without its semicolon, brace or end of line, its blanks made single; "" at the end.

        Directives that take no semicolon end with their line, but for a kernel's head, which ends with its parameters.
        """
        match = re.compile(r"\s*").match(self._text, self._at)
        assert match is not None
        self._advance(match.end())
        if self._at == len(self._text):
            return ""
        rest = self._text
        if rest[self._at] in "{}":
            return self._take(self._at + 1)
        label = re.compile(r"[\w$]+:(?!:)").match(rest, self._at)
        if label:
            return self._take(label.end())
        if re.compile(r"(\.visible )?\.entry").match(rest, self._at):
            return self._take(rest.index(")", self._at) + 1)
        section = re.compile(r"\.section[^{]*\{[^}]*\}").match(rest, self._at)
        if section:
            return self._take(section.end())
        if re.compile(r"\.(version|target|address_size|file|loc|maxn|minn|reqn)").match(rest, self._at):
            line_end = rest.find("\n", self._at)
            return self._take(len(rest) if line_end < 0 else line_end)
        end = rest.find(";", self._at)
        if end < 0:
            raise self._error(f"a statement without an end: {rest[self._at : self._at + 60]!r}")
        statement = self._take(end)
        self._advance(end + 1)
        return statement

    def _take(self, end: int) -> str:
        start = self._at
        self._advance(end)
        return " ".join(self._text[start:end].split())

    def _advance(self, end: int) -> None:
        self._line += self._text.count("\n", self._at, end)
        self._at = end

    def _variable(self, statement: str) -> Variable:
        match = _VARIABLE.fullmatch(re.sub(r"\s*([\[\]])\s*", r"\1", statement))
        if match is None or match["type"] not in SIZES:
            raise self._error(f"not a declaration that is known: {statement!r}")
        count = int(match["count"] or 0) if match["array"] else 1
        values = tuple(value.strip() for value in (match["values"] or "").strip("{} ").split(",") if value.strip())
        align = int(match["first"] or SIZES[match["type"]])
        return Variable(match["space"], match["name"], match["type"], count, align, values, bool(match["pointer"]))

    def _kernel(self, head: str) -> Kernel:
        match = re.fullmatch(r"(?:\.visible )?\.entry ([\w$]+) ?\((.*)\)", head)
        if match is None:
            raise self._error(f"not a kernel's head: {head!r}")
        kernel = Kernel(match[1], [self._variable(text.strip()) for text in match[2].split(",") if text.strip()])
        while (statement := self._statement()) != "{":
            if not statement.startswith(_BOUNDS):
                raise self._error(f"between a kernel's head and its body: {statement!r}")
            if statement.startswith((".reqntid", ".maxntid")):
                kernel.threads = int(re.findall(r"\d+", statement)[0])
        scopes: list[dict[str, str]] = [{}]
        made = 0
        while scopes:
            statement = self._statement()
            line = self._line
            if not statement:
                raise self._error(f"kernel {kernel.name} does not end")
            if statement == "{":
                scopes.append({})
            elif statement == "}":
                scopes.pop()
            elif statement.startswith(".loc"):
                numbers = re.findall(r"\d+", statement)
                self._source = (int(numbers[0]), int(numbers[1]))
            elif statement.startswith(_IGNORED):
                continue
            elif registers := _REGISTERS.fullmatch(statement):
                for name in registers["names"].split(","):
                    # NVRTC 13.0 declares the registers of inlined assembly without the sign.
                    sign = "%" * name.strip().startswith("%")
                    for register in _numbered(name.strip().lstrip("%")):
                        # A register of an inner scope may have the name of another one.
                        own = register if len(scopes) == 1 else f"{register}_scope{(made := made + 1)}"
                        scopes[-1][sign + register] = f"%{own}"
                        kernel.registers[own] = registers["type"]
            elif statement.startswith((".local", ".shared")):
                kernel.locals.append(self._variable(statement))
            elif statement.endswith(":"):
                kernel.body.append(Instruction(line, "", (), label=statement[:-1], source=self._source))
            else:
                kernel.body.append(self._instruction(statement, line, scopes))
        return kernel

    def _instruction(self, statement: str, line: int, scopes: list[dict[str, str]]) -> Instruction:
        def renamed(match: re.Match[str]) -> str:
            return next((scope[match[0]] for scope in reversed(scopes) if match[0] in scope), match[0])

        statement = re.sub(r"%?[A-Za-z_$][\w$]*", renamed, statement)
        guard = _GUARD.match(statement)
        if guard:
            statement = statement[guard.end() :]
        opcode, _, rest = statement.partition(" ")
        operands = tuple(" ".join(part.split()) for part in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", rest))
        return Instruction(
            line, opcode, operands, guard["name"] if guard else "", bool(guard and guard["not"]), source=self._source
        )


def _numbered(name: str) -> list[str]:
    """The registers of ``r<3>``: r0, r1, r2; a name without a count is one register."""
    match = re.fullmatch(r"([\w$]+)<(\d+)>", name)
    return [f"{match[1]}{number}" for number in range(int(match[2]))] if match else [name]
