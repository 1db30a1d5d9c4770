"""PTX instructions to C++: registers as locals, labels as gotos, what threads do together as calls of ptx.h."""

import re

from .parse import SIZES, Instruction, Kernel, Module, PtxError, Variable

COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNSIGNED_COMPARISONS = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
# Of floating point: true where either is NaN, and so the negation of the opposite.
UNORDERED = {"neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
SPECIAL = {
    f"%{name}.{axis}": f"{built_in}.{axis}"
    for name, built_in in {"tid": "threadIdx", "ntid": "blockDim", "ctaid": "blockIdx", "nctaid": "gridDim"}.items()
    for axis in "xyz"
} | {"%laneid": "((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31)"}
# How far a write reaches and how it is cached: nothing here, where writes are seen at once.
ORDERINGS = {"weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "gpu", "cta", "sys", "cluster"}
CACHES = {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"}
SPACES = {"global", "shared", "shared::cta", "local", "const", "param"}
ATOMICS = {
    "add": "old + given",
    "min": "given < old ? given : old",
    "max": "old < given ? given : old",
    "and": "old & given",
    "or": "old | given",
    "xor": "old ^ given",
    "exch": "given",
}
# Operations on values of one type, which {0} and {1} stand for. Integers are unsigned, so that they wrap.
ARITHMETIC = {"add": "{0} + {1}", "sub": "{0} - {1}", "neg": "-{0}"}
LOGIC = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}"}
EXTREMES = {"min": ("least", "<"), "max": ("greatest", ">")}
# Opcodes that give a u32: the type of their operands, and the expression over these.
COUNTS = {
    "bfe.u32": ("u32", "field({0}, {1}, {2})"),
    "prmt.b32": ("u32", "chosen_bytes({0}, {1}, {2})"),
    "brev.b32": ("u32", "reversed({0})"),
    "popc.b32": ("u32", "__builtin_popcount({0})"),
    "popc.b64": ("u64", "__builtin_popcountll({0})"),
    "clz.b32": ("u32", "{0} ? __builtin_clz({0}) : 32"),
    "clz.b64": ("u64", "{0} ? __builtin_clzll({0}) : 64"),
    # The place of the highest bit that is set, or how far it is from the top; all ones without one.
    "bfind.u32": ("u32", "{0} ? 31 - __builtin_clz({0}) : ~0u"),
    "bfind.shiftamt.u32": ("u32", "{0} ? __builtin_clz({0}) : ~0u"),
}
INTEGRAL = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def translate(module: Module, kernel: Kernel) -> str:
    """C++ that registers the kernel, by the name FANRANK_PTX_NAME, with the runtime of `kernels/cuda_host`.

    Raises `PtxError` for an instruction that is not known.
    """
    return _Translator(module, kernel).text()


class _Translator:
    def __init__(self, module: Module, kernel: Kernel) -> None:
        self._kernel = kernel
        self._registers = kernel.registers
        self._parameters = {parameter.name: place for place, parameter in enumerate(kernel.parameters)}
        self._variables = {**module.variables, **{variable.name: variable for variable in kernel.locals}}
        named = {word for each in kernel.body for operand in each.operands for word in re.findall(r"[\w$]+", operand)}
        self._named = [variable for name, variable in self._variables.items() if name in named]
        self._shared, self._fixed_shared = self._place_shared()
        self._lines = {each.label: each.line for each in kernel.body if not each.opcode}
        self._instruction = Instruction(0, "", ())

    def text(self) -> str:
        lines = [self._statement(each) if each.opcode else f"{_name('L', each.label)}:;" for each in self._kernel.body]
        registers = "".join(
            f"    bool {_name('R', name)} = true;\n"
            if type_ == "pred"
            else f"    u{8 * SIZES[type_]} {_name('R', name)} = u{8 * SIZES[type_]}(0x7f7f7f7f7f7f7f7fu);\n"
            for name, type_ in self._registers.items()
        )
        own = "".join(
            f"    alignas({each.align}) u8 {_name('V', each.name)}[{each.size}];\n"
            for each in self._named
            if each.space == "local"
        )
        globals_ = "".join(_global(each) for each in self._named if each.space in ("global", "const"))
        sizes = "".join(f"{parameter.size}, " for parameter in self._kernel.parameters)
        body = "\n    ".join(lines)
        return (
            f'#include "ptx.h"\n\nusing namespace ptx;\n\nnamespace {{\n\n{globals_}'
            "void run([[maybe_unused]] void *const *parameters) {\n"
            f"    {registers}{own}    {body}\n}}\n\n"
            f"constexpr std::uint16_t SIZES[] = {{{sizes}0}};\n\n"
            "void call(void (*function)(), void *const *arguments) {\n"
            "    reinterpret_cast<void (*)(void *const *)>(function)(arguments);\n}\n\n"
            "fanrank_host::Registration registration("
            f"{{FANRANK_PTX_NAME, {len(self._kernel.parameters)}, SIZES, call,\n"
            f"    reinterpret_cast<void (*)()>(&run), nullptr, {self._fixed_shared}}});\n\n}}  // namespace\n"
        )

    def _place_shared(self) -> tuple[dict[str, int], int]:
        """Where each shared variable that the kernel names begins, and the bytes before the dynamic ones."""
        places, end = {}, 0
        for variable in sorted(
            (each for each in self._named if each.space == "shared"), key=lambda each: not each.count
        ):
            end += -end % variable.align
            places[variable.name] = end
            end += variable.size
        return places, end + -end % 16

    def _error(self, why: str) -> PtxError:
        return PtxError(f"{self._kernel.name}, line {self._instruction.line}: {why}: {self._instruction.text()!r}")

    def _statement(self, instruction: Instruction) -> str:
        self._instruction = instruction
        try:
            statement = self._translated(instruction.opcode, list(instruction.operands))
        except (ValueError, KeyError, IndexError) as error:
            raise self._error(f"a form that is not known ({error})") from error
        if instruction.guard:
            return f"if ({'!' * instruction.guard_is_negated}{_name('R', instruction.guard)}) {{ {statement} }}"
        return statement

    def _translated(self, opcode: str, operands: list[str]) -> str:
        root, *modifiers = opcode.split(".")
        if opcode in COUNTS:
            type_, expression = COUNTS[opcode]
            return self._set(
                operands[0], "u32", expression.format(*(self._value(each, type_) for each in operands[1:]))
            )
        if root in ARITHMETIC:
            return self._arithmetic(modifiers, operands, ARITHMETIC[root])
        if root in LOGIC:
            (type_,) = modifiers
            values = (self._value(operand, type_) for operand in operands[1:])
            return self._set(operands[0], type_, LOGIC[root].format(*values))
        if root in EXTREMES:
            return self._extreme(modifiers, operands, *EXTREMES[root])
        if root in ("mul", "mad"):
            return self._product(modifiers, operands[:3], operands[3] if root == "mad" else "")
        if root in ("atom", "red"):
            into, address, *values = operands if root == "atom" else ["_", *operands]
            return self._atomic(modifiers, address, values, into)
        if root in ("membar", "fence") and not set(modifiers) - {"acq_rel", "sc", "gpu", "gl", "cta", "sys"}:
            return ";"
        if root == "ret":
            return "return;"
        method = getattr(self, f"_do_{root}", None)
        if method is None:
            raise self._error("an instruction that is not known")
        statement: str = method(modifiers, operands)
        return statement

    def _value(self, operand: str, type_: str) -> str:
        """The operand's bits, as an unsigned integer of the type's size; a predicate as a bool."""
        size = SIZES[type_]
        cast = f"u{8 * size}"
        if type_ == "pred":
            if re.fullmatch(r"-?\d+", operand):
                return str(int(operand) != 0).lower()
            register = operand.lstrip("!").removeprefix("%")
            if self._registers[register] != "pred":
                raise ValueError(f"{operand} is no predicate")
            return operand[: -len(register) - 1] + _name("R", register)
        if operand in SPECIAL:
            return SPECIAL[operand]
        if operand.startswith("%"):
            own = SIZES[self._registers[operand[1:]]]
            if own < size or self._registers[operand[1:]] == "pred":
                raise ValueError(f"{operand} is smaller than .{type_}")
            name = _name("R", operand[1:])
            return name if own == size else f"{cast}({name})"
        if match := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})|0[fF]([0-9a-fA-F]{8})", operand):
            if size != (8 if match[1] else 4):
                raise ValueError(f"{operand} is no .{type_}")
            return f"{cast}(0x{match[1] or match[2]}u)"
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", operand):
            number = int(operand.rstrip("U"), 0)
            if not -(1 << 8 * size - 1) <= number < 1 << 8 * size:
                raise ValueError(f"{operand} is no .{type_}")
            return f"{cast}({number & (1 << 8 * size) - 1}u)"
        return f"{cast}({self._symbol(operand)})"

    def _symbol(self, name: str) -> str:
        """The address of a variable, in its own space."""
        if name in self._shared:
            return f"u64({self._shared[name] if self._variables[name].count else self._fixed_shared})"
        if name in self._parameters:
            return f"reinterpret_cast<u64>(parameters[{self._parameters[name]}])"
        if name in self._variables:
            return f"reinterpret_cast<u64>({_name('V', name)})"
        raise ValueError(f"no variable {name}")

    def _address(self, operand: str) -> str:
        match = re.fullmatch(r"\[ ?(%?[\w$]+) ?(?:\+ ?(-?\d+))? ?\]", operand)
        if match is None:
            raise ValueError(f"no address: {operand}")
        base = match[1]
        if base.startswith("%"):
            text = f"u64({_name('R', base[1:])})"
            if SIZES[self._registers[base[1:]]] < 4:
                raise ValueError(f"no address: {operand}")
        else:
            text = f"u64({base}u)" if base.isdigit() else self._symbol(base)
        return text + (f" + u64({int(match[2])})" if match[2] else "")

    def _typed(self, operand: str, type_: str) -> str:
        """The operand as a number of its type: s32, f64 ..."""
        value = self._value(operand, type_)
        if type_[0] == "f":
            return f"bits<{type_}>({value})"
        return f"{type_}({value})" if type_[0] == "s" else value

    def _set(self, register: str, type_: str, expression: str) -> str:
        """Assign to a register a number of a type; a register that is wider takes it extended."""
        if register == "_":
            return f"static_cast<void>({expression});"
        own = self._registers[register.removeprefix("%")]
        name = _name("R", register.removeprefix("%"))
        if type_ == "pred" or own == "pred":
            if type_ != own:
                raise ValueError(f"{register} is .{own}")
            return f"{name} = {expression};"
        if SIZES[own] < SIZES[type_] or (type_[0] == "f" and SIZES[own] != SIZES[type_]):
            raise ValueError(f"{register} is .{own}")
        if type_[0] == "f":
            return f"{name} = bits<u{8 * SIZES[own]}>({type_}({expression}));"
        return f"{name} = u{8 * SIZES[own]}({_native(type_)}({expression}));"

    def _arithmetic(self, modifiers: list[str], operands: list[str], expression: str) -> str:
        """An operation on two or three values of one type; {0}, {1} and {2} stand for them."""
        type_, flush = self._type_of(modifiers, {"rn"})
        values = [self._typed(operand, type_) for operand in operands[1:]]
        if type_[0] in "sb":
            # Unsigned, so that it wraps.
            values = [self._value(operand, type_) for operand in operands[1:]]
        if flush:
            values = [f"flushed({value})" for value in values]
        result = expression.format(*values)
        return self._set(operands[0], type_, f"flushed({result})" if flush else result)

    def _type_of(self, modifiers: list[str], allowed: set[str]) -> tuple[str, bool]:
        """(the type, whether subnormal numbers become zero) of modifiers that are `allowed` beside these."""
        *others, type_ = modifiers
        unknown = set(others) - allowed - {"ftz"}
        if unknown or type_ not in SIZES:
            raise ValueError(f"modifiers {sorted(unknown) or type_}")
        if "ftz" in others and type_ != "f32":
            raise ValueError(f".ftz of .{type_}")
        return type_, "ftz" in others

    def _do_mov(self, modifiers: list[str], operands: list[str]) -> str:
        (type_,) = modifiers
        into, value = operands
        size = 8 * SIZES[type_]
        if into.startswith("{"):
            parts = _elements(into)
            width = size // len(parts)
            sets = " ".join(
                self._set(part, f"b{width}", f"u{width}(whole >> {place * width})")
                for place, part in enumerate(parts)
                if part != "_"
            )
            return f"{{ const u{size} whole = {self._value(value, type_)}; {sets} }}"
        if value.startswith("{"):
            parts = _elements(value)
            width = size // len(parts)
            values = (f"u64({self._value(part, f'b{width}')}) << {n * width}" for n, part in enumerate(parts))
            return self._set(into, f"b{size}", " | ".join(values))
        return self._set(into, "pred" if type_ == "pred" else f"b{size}", self._value(value, type_))

    def _product(self, modifiers: list[str], operands: list[str], added: str) -> str:
        half = {"lo", "hi", "wide"} & set(modifiers)
        if not half:
            if added:
                raise ValueError(f"modifiers {modifiers}")
            return self._arithmetic(modifiers, operands, "{0} * {1}")
        (which,), (_, type_) = half, modifiers
        size = SIZES[type_]
        a, b = (self._typed(operand, type_) for operand in operands[1:])
        wide = f"static_cast<{'unsigned ' * (type_[0] == 'u')}__int128>({a}) * {b}"
        result = f"{type_[0]}{16 * size}" if which == "wide" else type_
        if which == "hi":
            wide = f"({wide} >> {8 * size})"
        if added:
            wide = f"{wide} + {self._value(added, result)}"
        return self._set(operands[0], result, f"static_cast<u64>({wide})")

    def _do_fma(self, modifiers: list[str], operands: list[str]) -> str:
        type_, _ = self._type_of(modifiers, {"rn"})
        return self._arithmetic(modifiers, operands, f"__builtin_fma{'f' * (type_ == 'f32')}({{0}}, {{1}}, {{2}})")

    def _do_div(self, modifiers: list[str], operands: list[str]) -> str:
        type_, _ = self._type_of(modifiers, {"rn"})
        if type_[0] == "f":
            if "rn" not in modifiers:
                raise ValueError("an approximate division")
            return self._arithmetic(modifiers, operands, "{0} / {1}")
        a, b = (self._typed(operand, type_) for operand in operands[1:])
        return self._set(operands[0], type_, f"divided<{type_}>({a}, {b}, {self._instruction.line})")

    def _do_rem(self, modifiers: list[str], operands: list[str]) -> str:
        (type_,) = modifiers
        a, b = (self._typed(operand, type_) for operand in operands[1:])
        return self._set(operands[0], type_, f"rest<{type_}>({a}, {b}, {self._instruction.line})")

    def _extreme(self, modifiers: list[str], operands: list[str], function: str, sign: str) -> str:
        type_, _ = self._type_of(modifiers, set())
        if type_[0] == "f":
            return self._arithmetic(modifiers, operands, f"{function}<{type_}>({{0}}, {{1}})")
        a, b = (self._typed(operand, type_) for operand in operands[1:])
        return self._set(operands[0], type_, f"{a} {sign} {b} ? {a} : {b}")

    def _do_abs(self, modifiers: list[str], operands: list[str]) -> str:
        type_, _ = self._type_of(modifiers, set())
        if type_[0] == "f":
            return self._arithmetic(modifiers, operands, "__builtin_fabs({0})")
        value, typed = self._value(operands[1], type_), self._typed(operands[1], type_)
        return self._set(operands[0], type_, f"{typed} < 0 ? 0 - {value} : {value}")

    def _do_not(self, modifiers: list[str], operands: list[str]) -> str:
        (type_,) = modifiers
        value = self._value(operands[1], type_)
        return self._set(operands[0], type_, f"!{value}" if type_ == "pred" else f"~{value}")

    def _do_shl(self, modifiers: list[str], operands: list[str]) -> str:
        (type_,) = modifiers
        value, amount = self._value(operands[1], type_), self._value(operands[2], "u32")
        return self._set(operands[0], type_, f"{amount} < {8 * SIZES[type_]} ? {value} << {amount} : 0")

    def _do_shr(self, modifiers: list[str], operands: list[str]) -> str:
        (type_,) = modifiers
        value, amount, last = self._typed(operands[1], type_), self._value(operands[2], "u32"), 8 * SIZES[type_] - 1
        beyond = f"{value} >> {last}" if type_[0] == "s" else "0"
        return self._set(operands[0], type_, f"{amount} <= {last} ? {value} >> {amount} : {beyond}")

    def _do_bfi(self, modifiers: list[str], operands: list[str]) -> str:
        (type_,) = modifiers
        value, into = (self._value(operand, type_) for operand in operands[1:3])
        first, length = (self._value(operand, "u32") for operand in operands[3:])
        return self._set(operands[0], type_, f"inserted({value}, {into}, {first}, {length})")

    def _do_setp(self, modifiers: list[str], operands: list[str]) -> str:
        compare, *others, type_ = modifiers
        flush = "ftz" in others
        combined = [other for other in others if other != "ftz"]
        a, b = (self._typed(operand, type_) for operand in operands[1:3])
        if flush:
            a, b = f"flushed({a})", f"flushed({b})"
        if compare == "equ" or compare in COMPARISONS:
            sign, opposite = COMPARISONS.get(compare, ""), ""
        elif type_[0] == "f":
            # The negation of what is false where either is NaN.
            sign, opposite = UNORDERED[compare], "!"
        else:
            sign, opposite = UNSIGNED_COMPARISONS[compare], ""
        if compare == "ne" and type_[0] == "f":
            result = f"({a} < {b} || {a} > {b})"
        elif compare == "equ":
            result = f"!({a} < {b} || {a} > {b})"
        else:
            result = f"{opposite}({a} {sign} {b})"
        into = [part.strip() for part in operands[0].split("|")]
        sets = [(into[0], result)] + [(other, f"!{result}") for other in into[1:]]
        if combined:
            (how,) = combined
            sign = {"and": "&", "or": "|", "xor": "^"}[how]
            third = self._value(operands[3], "pred")
            sets = [(register, f"{text} {sign} {third}") for register, text in sets]
        # Both from values before either is set.
        names = [f"const bool set{n} = {text};" for n, (_, text) in enumerate(sets)]
        return f"{{ {' '.join(names)} {' '.join(self._set(r, 'pred', f'set{n}') for n, (r, _) in enumerate(sets))} }}"

    def _do_selp(self, modifiers: list[str], operands: list[str]) -> str:
        (type_,) = modifiers
        into, a, b, predicate = operands
        chosen = f"{self._value(predicate, 'pred')} ? {self._value(a, type_)} : {self._value(b, type_)}"
        return self._set(into, f"u{8 * SIZES[type_]}", chosen)

    def _do_cvt(self, modifiers: list[str], operands: list[str]) -> str:
        *how, to, of = modifiers
        rounding = [each for each in how if each != "ftz"]
        value = self._typed(operands[1], of)
        flush = "ftz" in how
        if flush and of == "f32":
            value = f"flushed({value})"
        if of[0] == "f" and to[0] != "f":
            (mode,) = rounding
            result = f"whole<{to}>({_rounded(mode, of, value)})"
        elif of[0] != "f" and to[0] == "f":
            if rounding != ["rn"]:
                raise ValueError(f"modifiers {modifiers}")
            result = f"{to}({value})"
        elif of[0] == "f":
            if (SIZES[to] > SIZES[of] and not rounding) or (SIZES[to] < SIZES[of] and rounding == ["rn"]):
                result = f"{to}({value})"
            elif to == of and len(rounding) == 1:
                result = _rounded(rounding[0], of, value)
            else:
                raise ValueError(f"modifiers {modifiers}")
        else:
            if how:
                raise ValueError(f"modifiers {modifiers}")
            result = f"{to}({value})"
        return self._set(operands[0], to, f"flushed({result})" if flush and to == "f32" else result)

    def _do_cvta(self, modifiers: list[str], operands: list[str]) -> str:
        *way, space, _ = modifiers
        value = self._value(operands[1], "u64") if operands[1].startswith("%") else self._symbol(operands[1])
        if space.startswith("shared"):
            value += " - SHARED_WINDOW" if way == ["to"] else " + SHARED_WINDOW"
        elif space not in ("global", "local", "const", "param"):
            raise ValueError(f"space {space}")
        return self._set(operands[0], "u64", value)

    def _place(self, modifiers: list[str], operand: str, size: int) -> tuple[str, str]:
        """(C++ that declares `at`, the type) of an access of `size` bytes, 0: of the type and vector."""
        *others, type_ = modifiers
        spaces = [other for other in others if other in SPACES]
        vector = next((int(other[1]) for other in others if other in ("v2", "v4", "v8")), 1)
        known = ORDERINGS | CACHES | SPACES | {"v2", "v4"}
        unknown = [other for other in others if other not in known and not other.startswith("L")]
        if unknown or len(spaces) > 1 or type_ not in SIZES:
            raise ValueError(f"modifiers {unknown or modifiers}")
        space = spaces[0].partition("::")[0] if spaces else "generic"
        function = {"local": "own", "const": "own", "param": "own"}.get(space, space)
        if "nc" in others:
            function = "own"
        size = size or vector * SIZES[type_]
        where = f"{self._address(operand)}, {size}, {self._instruction.line}"
        return f"u8 *const at = at_{function}({where});", type_

    def _do_ld(self, modifiers: list[str], operands: list[str]) -> str:
        place, type_ = self._place(modifiers, operands[1], 0)
        parts = _elements(operands[0])
        if len(parts) != next((int(each[1]) for each in modifiers if each in ("v2", "v4")), 1):
            raise ValueError(f"{len(parts)} registers")
        # A register of bits that is wider takes zeros; one of a signed type its sign.
        kind = type_ if type_[0] == "s" else f"u{8 * SIZES[type_]}"
        sets = " ".join(self._set(part, kind, f"get<{kind}>(at, {n})") for n, part in enumerate(parts) if part != "_")
        return f"{{ {place} {sets} }}"

    def _do_st(self, modifiers: list[str], operands: list[str]) -> str:
        place, type_ = self._place(modifiers, operands[0], 0)
        parts = _elements(operands[1])
        if len(parts) != next((int(each[1]) for each in modifiers if each in ("v2", "v4")), 1):
            raise ValueError(f"{len(parts)} registers")
        puts = " ".join(f"put(at, {self._value(part, type_)}, {number});" for number, part in enumerate(parts))
        return f"{{ {place} {puts} }}"

    def _atomic(self, modifiers: list[str], address: str, values: list[str], into: str) -> str:
        (name,) = [each for each in modifiers if each in ATOMICS or each == "cas"]
        others = [each for each in modifiers if each != name and each not in ("async", "noftz")]
        place, type_ = self._place(others, address, 0)
        kind = type_ if type_[0] in "sf" else f"u{8 * SIZES[type_]}"
        given = [f"const {kind} given{n} = {self._typed(each, kind)};" for n, each in enumerate(values)]
        next_value = "old == given0 ? given1 : old" if name == "cas" else ATOMICS[name].replace("given", "given0")
        keeps = self._set(into, kind, "old")
        return (
            f"{{ {' '.join(given)} {place} const {kind} old = get<{kind}>(at); "
            f"put(at, static_cast<{kind}>({next_value})); {keeps} }}"
        )

    def _do_bra(self, modifiers: list[str], operands: list[str]) -> str:
        if modifiers not in ([], ["uni"]):
            raise ValueError(f"modifiers {modifiers}")
        back = f"jump_back({self._instruction.line}); " if self._lines[operands[0]] <= self._instruction.line else ""
        return f"{back}goto {_name('L', operands[0])};"

    def _do_barrier(self, modifiers: list[str], operands: list[str]) -> str:
        return self._do_bar([each for each in modifiers if each not in ("cta", "aligned")], operands)

    def _do_bar(self, modifiers: list[str], operands: list[str]) -> str:
        if modifiers == ["warp", "sync"]:
            members = self._value(operands[0], "b32")
            return f"fanrank_host::exchange(Exchange::sync, {members}, 0, 0, 32);"
        line = self._instruction.line
        if modifiers == ["sync"]:
            number, count = ([self._value(operand, "u32") for operand in operands] + ["0"])[:2]
            return f"block_barrier(Barrier::plain, false, {number}, {count}, {line});"
        way, how, type_ = modifiers
        kind = {("popc", "u32"): "count", ("and", "pred"): "all", ("or", "pred"): "any"}[how, type_]
        if way != "red":
            raise ValueError(f"modifiers {modifiers}")
        into, number, *counts, predicate = operands
        count = self._value(counts[0], "u32") if counts else "0"
        which = f"{self._value(predicate, 'pred')}, {self._value(number, 'u32')}, {count}, {line}"
        return self._set(into, type_, f"block_barrier(Barrier::{kind}, {which})")

    def _do_shfl(self, modifiers: list[str], operands: list[str]) -> str:
        sync, mode, type_ = modifiers
        if sync != "sync" or mode not in ("up", "down", "bfly", "idx") or type_ != "b32":
            raise ValueError(f"modifiers {modifiers}")
        into = [part.strip() for part in operands[0].split("|")]
        values = ", ".join(self._value(operand, "b32") for operand in operands[1:])
        inside = f" {self._set(into[1], 'pred', 'inside')}" if len(into) > 1 and into[1] != "_" else ""
        result = f"const u32 got = shuffled(Shuffle::{mode}, {values}, inside);"
        return f"{{ bool inside; {result} {self._set(into[0], 'b32', 'got')}{inside} }}"

    def _do_ldmatrix(self, modifiers: list[str], operands: list[str]) -> str:
        parts, places = self._matrices(modifiers, *operands)
        gets = (self._set(part, "b32", f"get<u32>({place})") for part, place in zip(parts, places, strict=True))
        return f"{{ const u32 row = u32({self._address(operands[1])}); {' '.join(gets)} }}"

    def _do_stmatrix(self, modifiers: list[str], operands: list[str]) -> str:
        address, values = operands
        parts, places = self._matrices(modifiers, values, address)
        puts = (f"put({place}, {self._value(part, 'b32')});" for part, place in zip(parts, places, strict=True))
        return f"{{ const u32 row = u32({self._address(address)}); {' '.join(puts)} }}"

    def _matrices(self, modifiers: list[str], values: str, address: str) -> tuple[list[str], list[str]]:
        """Of each matrix of 8 rows of 16 bytes a lane has 4: lane 4 i + j those at 4 j of row i."""
        sync, aligned, shape, how_many, *space, type_ = modifiers
        if (sync, aligned, shape, type_) != ("sync", "aligned", "m8n8", "b16"):
            raise ValueError(f"modifiers {modifiers}")
        if space not in (["shared"], ["shared::cta"]):
            raise ValueError(f"modifiers {modifiers}")
        parts = _elements(values)
        if len(parts) != {"x1": 1, "x2": 2, "x4": 4}[how_many]:
            raise ValueError(f"{len(parts)} registers")
        return parts, [f"matrix_part(row, {number}, {self._instruction.line})" for number in range(len(parts))]

    def _do_vote(self, modifiers: list[str], operands: list[str]) -> str:
        sync, how, type_ = modifiers
        if sync != "sync" or (how, type_) not in (("any", "pred"), ("all", "pred"), ("ballot", "b32")):
            raise ValueError(f"modifiers {modifiers}")
        predicate, members = self._value(operands[1], "pred"), self._value(operands[2], "b32")
        return self._set(operands[0], type_, f"{how}({predicate}, {members})")

    def _do_redux(self, modifiers: list[str], operands: list[str]) -> str:
        _, how, type_ = modifiers
        name = f"{how.upper()}_{type_.upper()}" if how in ("min", "max") else f"{how.upper()}_32"
        value, members = (self._value(operand, "b32") for operand in operands[1:])
        return self._set(operands[0], "u32", f"reduced(fanrank_host::{name}, {value}, {members})")


def _name(kind: str, name: str) -> str:
    """A C++ name for a register, variable or label."""
    return f"{kind}_{name}"


def _native(type_: str) -> str:
    """The C++ type of an integer of a PTX type."""
    return type_ if type_[0] in "su" else f"u{8 * SIZES[type_]}"


def _elements(operand: str) -> list[str]:
    """The parts of a vector ``{a, b}``, or the operand itself."""
    return [part.strip() for part in operand.strip("{} ").split(",")]


def _rounded(mode: str, of: str, value: str) -> str:
    return f"__builtin_{INTEGRAL[mode]}{'f' * (of == 'f32')}({value})"


def _global(variable: Variable) -> str:
    """A variable of the module, as it begins."""
    values = variable.values or ("0",)
    cast = f"u{8 * SIZES[variable.type]}"
    numbers = ", ".join(f"{cast}({int(value, 0) & (1 << 8 * SIZES[variable.type]) - 1}u)" for value in values)
    return f"alignas({variable.align}) {cast} {_name('V', variable.name)}[{max(1, variable.count)}] = {{{numbers}}};\n"
