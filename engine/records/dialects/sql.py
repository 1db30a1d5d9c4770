"""Conditions in SQL, as LanceDB and other stores take them: ``year >= 2024 AND (tags IS NULL OR title LIKE 'A%')``.

::

    either     = both {OR both}
    both       = negation {AND negation}
    negation   = NOT negation | ( either ) | condition
    condition  = name [comparison literal | IS [NOT] (NULL | TRUE | FALSE) |
                       [NOT] (IN ( literal {, literal} ) | BETWEEN literal AND literal | LIKE text | ILIKE text)]

Logic has three values, as in SQL: what compares a missing value or NULL is unknown, and so is its negation. Unknown
does not pass. A name may be quoted by ``"`` or a backtick; dots lead into nested objects. Texts stand in single quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..filters import MAX_DEPTH, Filter
from .place import NEVER, Place

_COMPARISONS = {"=": "==", "==": "==", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_RESERVED = {"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ILIKE", "IS", "NULL", "TRUE", "FALSE"}
_CONSTANTS: dict[str, Any] = {"NULL": None, "TRUE": True, "FALSE": False}

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<name>(?:[^\W\d]\w*|"(?:[^"]|"")+"|`[^`]+`)(?:\.(?:[^\W\d]\w*|"(?:[^"]|"")+"|`[^`]+`))*)
      | (?P<sign><=|>=|<>|!=|==|[=<>(),])
    )""",
    re.VERBOSE,
)
_NAME_PART = re.compile(r'[^\W\d]\w*|"(?:[^"]|"")+"|`[^`]+`')


class _Token(NamedTuple):
    kind: str  # text, number, name, word (a reserved one), sign, end
    value: Any
    start: int


Emit = Callable[[bool], Filter]
"""Makes the filter of the records for which a condition is true, or for which it is false."""


def read(spec: Any, place: Place) -> Filter | None:
    """The filter for the condition `spec`. Raises `QueryError` with the character at which it is wrong."""
    if not isinstance(spec, str):
        raise place.error(f"must be a string, not {type(spec).__name__}")
    parser = _Parser(place, list(_tokens(spec, place)))
    condition = parser.either(1)
    parser.expect("end", None)
    return condition(True)


def _tokens(spec: str, place: Place) -> Iterable[_Token]:
    start = 0
    end = len(spec.rstrip())
    while start < end:
        match = _TOKEN.match(spec, start)
        if match is None or match.lastgroup is None:
            start += len(spec[start:]) - len(spec[start:].lstrip())
            raise place.error(f"character {start + 1}: cannot read {spec[start : start + 20]!r}")
        kind, text = match.lastgroup, match[match.lastgroup]
        value: Any = text
        if kind == "text":
            value = text[1:-1].replace("''", "'")
        elif kind == "number":
            value = int(text) if re.fullmatch(r"[+-]?\d{1,300}", text) else float(text)
        elif kind == "name" and text.upper() in _RESERVED:
            kind, value = "word", text.upper()
        elif kind == "name":
            value = ".".join(map(_unquoted, _NAME_PART.findall(text)))
        yield _Token(kind, value, match.start(match.lastgroup))
        start = match.end()
    yield _Token("end", None, end)


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part[0] in '"`' else part


@dataclass
class _Parser:
    place: Place
    tokens: list[_Token]
    position: int = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.position]

    def accept(self, kind: str, *values: Any) -> _Token | None:
        """Pass over the next token, if it is of this kind and one of these values."""
        token = self.token
        if token.kind != kind or (values and token.value not in values):
            return None
        self.position += 1
        return token

    def expect(self, kind: str, value: Any = None, what: str = "") -> _Token:
        token = self.accept(kind) if value is None else self.accept(kind, value)
        if token is None:
            raise self.error(what or (f"{value!r}" if value is not None else f"AND, OR or the {kind}"))
        return token

    def error(self, wanted: str) -> Exception:
        token = self.token
        found = "the end" if token.kind == "end" else repr(token.value)
        return self.place.error(f"character {token.start + 1}: expected {wanted}, not {found}")

    def either(self, depth: int) -> Emit:
        if depth > MAX_DEPTH:
            raise self.place.error(f"character {self.token.start + 1}: nested more than {MAX_DEPTH} deep")
        parts = [self.both(depth)]
        while self.accept("word", "OR"):
            parts.append(self.both(depth))
        return self._join(parts, False)

    def both(self, depth: int) -> Emit:
        parts = [self.negation(depth)]
        while self.accept("word", "AND"):
            parts.append(self.negation(depth))
        return self._join(parts, True)

    def _join(self, parts: list[Emit], every: bool) -> Emit:
        def emit(wanted: bool) -> Filter:
            inner = [part(wanted) for part in parts]
            return self.place.both(inner) if every == wanted else self.place.either(inner)

        return parts[0] if len(parts) == 1 else emit

    def negation(self, depth: int) -> Emit:
        negated = False
        while self.accept("word", "NOT"):
            negated = not negated
        if self.accept("sign", "("):
            inner = self.either(depth + 1)
            self.expect("sign", ")")
        else:
            inner = self.condition()
        return _negated(inner) if negated else inner

    def condition(self) -> Emit:
        name = self.accept("name")
        if name is None:
            value, (operator, _) = self.literal("a column, NOT or a bracket"), self.comparison()
            column = self.expect("name", what="a column").value
            return self._compare(column, _MIRRORED.get(operator, operator), value)
        column = name.value
        if self.accept("word", "IS"):
            return self._is(column)
        negated = self.accept("word", "NOT") is not None
        if self.accept("word", "IN"):
            found = self._in(column)
        elif self.accept("word", "BETWEEN"):
            low = self._compare(column, ">=", self.literal())
            self.expect("word", "AND")
            found = self._join([low, self._compare(column, "<=", self.literal())], True)
        elif token := self.accept("word", "LIKE", "ILIKE"):
            found = self._compare(column, token.value.lower(), self.literal("a pattern"))
        elif negated:
            raise self.error("IN, BETWEEN or LIKE")
        elif self.token.kind == "sign" and self.token.value in _COMPARISONS:
            operator, _ = self.comparison()
            return self._compare(column, operator, self.literal())
        else:
            return self._compare(column, "==", True)
        return _negated(found) if negated else found

    def comparison(self) -> tuple[str, _Token]:
        token = self.accept("sign", *_COMPARISONS)
        if token is None:
            raise self.error("a comparison")
        return _COMPARISONS[token.value], token

    def literal(self, what: str = "a text, a number, TRUE, FALSE or NULL") -> Any:
        token = self.accept("text") or self.accept("number")
        if token is not None:
            return token.value
        token = self.accept("word", *_CONSTANTS)
        if token is None:
            raise self.error(what)
        return _CONSTANTS[token.value]

    def _compare(self, column: str, operator: str, value: Any) -> Emit:
        if value is None:
            return lambda wanted: NEVER
        compared = self.place.compare(column, operator, value)
        exists = self.place.compare(column, "!=", None)

        def emit(wanted: bool) -> Filter:
            if wanted:
                return self.place.both([compared, exists]) if operator == "!=" else compared
            return self.place.both([self.place.negate(compared), exists])

        return emit

    def _in(self, column: str) -> Emit:
        self.expect("sign", "(")
        values = [self.literal()]
        while self.accept("sign", ","):
            values.append(self.literal())
        self.expect("sign", ")")
        known = self.place.among(column, [value for value in values if value is not None])
        # Whatever is not among the known ones may still be the unknown one.
        outside = NEVER if None in values else self.place.both([~known, self.place.compare(column, "!=", None)])
        return lambda wanted: known if wanted else outside

    def _is(self, column: str) -> Emit:
        negated = self.accept("word", "NOT") is not None
        token = self.accept("word", *_CONSTANTS)
        if token is None:
            raise self.error("NULL, TRUE or FALSE")
        same = self.place.compare(column, "==", _CONSTANTS[token.value])
        other = self.place.compare(column, "!=", _CONSTANTS[token.value])
        return lambda wanted: same if wanted is not negated else other


def _negated(emit: Emit) -> Emit:
    return lambda wanted: emit(not wanted)
