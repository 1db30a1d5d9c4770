r"""The oracle's tokens of the analyzer `agent`, by the numbered rules of docs/analyzers.md.

Like `oracle_text` it imports nothing of the engine. A chunk is a list here, of words and what joins them:
``src/a_b.py`` is ``["src", "/", "a_b", ".", "py"]``. Each rule groups that list anew, where the engine cuts strings by
patterns.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import groupby, pairwise

Chunk = list[str]

ESCAPE, BELL, JOINER = "\x1b", "\x07", "\u200d"
JOINTS = ("::", "//", "\\\\", "/.", "/@", "-", ".", "/", "\\", "@", "+")
PATH_JOINTS = ("::", "//", "\\\\", "/.", "/@", "/", "\\", "@")
DIGITS, SMALL, CAPITAL = "0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ASCII_WORD = frozenset(DIGITS + SMALL + CAPITAL + "_")
LONGEST_CHUNK, LONGEST_CUT_BY_CASE, SHORTEST_KEY = 255, 64, 8

LETTERS = {"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ħ": "h", "ı": "i"}
SPACES = ("\u200b", "\u00a9", "\u00ae", "\u2120", "\u2122")
HYPHENS = ("\u2010", "\u2011", "\u2212")
GONE = (
    (0x345, 0x345), (0x34F, 0x34F), (0xFE00, 0xFE0F), (0xAD, 0xAD), (0x61C, 0x61C), (0x200C, 0x200C), (0x200E, 0x200F),
    (0x202A, 0x202E), (0x2060, 0x2064), (0x2066, 0x206F), (0xFEFF, 0xFEFF), (0x1F3FB, 0x1F3FF), (0xE0000, 0xE0FFF),
)  # fmt: skip
ACCENTS = ((0x300, 0x36F), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE20, 0xFE2F))


def agent_tokens(text: str) -> list[str]:
    """The tokens of a text, in order, with repeats."""
    tokens: list[str] = []
    for chunk, _ in _chunks(_without_escapes("".join("?" if _within(c, 0xD800, 0xDFFF) else c for c in text)), _is_raw):
        raw = "".join(chunk)
        for finer, picture in [(chunk, "")] if raw.isascii() else _chunks(_fold(raw), _is_word):
            tokens += [picture] if picture else _chunk_tokens(finer)
    return tokens


def _within(letter: str, first: int, last: int) -> bool:
    return first <= ord(letter) <= last


# Rule 1: escapes.


def _without_escapes(text: str) -> str:
    kept, at = "", 0
    while at < len(text):
        end = _escape_end(text, at) if text[at] == ESCAPE else at
        if end > at:
            kept, at = kept + ("" if text[end - 1] in "mK" else " "), end
        else:
            kept, at = kept + text[at], at + 1
    return kept


def _escape_end(text: str, begin: int) -> int:
    """Where the escape ends, or `begin` where what stands there is none."""
    letters, at = text + "\0\0", begin + 1  # a zero is part of no escape but a title, whose end is looked for
    if letters[at] == "]":
        while at < len(text) and letters[at] not in (BELL, ESCAPE):
            at += 1
        if at < len(text) and letters[at] == BELL:
            return at + 1
        return at + 2 if letters[at : at + 2] == ESCAPE + "\\" else begin
    if control := letters[at] == "[":
        at += 1
        while _within(letters[at], 0x30, 0x3F):
            at += 1
    while _within(letters[at], 0x20, 0x2F):
        at += 1
    last = letters[at]
    ends = _within(last, 0x40, 0x7E) if control else _within(last, 0x30, 0x7E) and last not in "[]"
    return at + 1 if ends else begin


# Rules 2 and 4: chunks.


def _chunks(text: str, belongs: Callable[[str], bool]) -> list[tuple[Chunk, str]]:
    """The chunks and the pictures of a text in order: each pair holds one of them."""
    runs = [(word, "".join(letters)) for word, letters in groupby(text, belongs)]
    found: list[tuple[Chunk, str]] = []
    joins = False
    for number, (word, run) in enumerate(runs):
        if word and joins:
            found[-1][0].append(run)
        elif word:
            found.append(([run], ""))
        else:
            joins = run in JOINTS and 0 < number < len(runs) - 1
            if joins:
                found[-1][0].append(run)
            else:
                found += [([], picture) for picture in _pictures(run)]
    return found


def _is_raw(letter: str) -> bool:
    if letter.isascii():
        return letter in ASCII_WORD
    return not _within(letter, 0x2012, 0x2027)


def _is_word(letter: str) -> bool:
    return letter == "_" or _is(letter, "L") or _is(letter, "N") or _is(letter, "M")


def _pictures(run: str) -> list[str]:
    found, at = [], 0
    while at < len(run):
        end = at + 1
        if _is_flag(run[at]) and _is_flag(run[end : end + 1]):
            found.append(run[at : end + 1])
            end += 1
        elif _is(run[at], "Extended_Pictographic"):
            while run[end : end + 1] == JOINER and _is(run[end + 1 : end + 2], "Extended_Pictographic"):
                end += 2
            found.append(run[at:end])
        at = end
    return found


def _is_flag(letter: str) -> bool:
    return letter != "" and _within(letter, 0x1F1E6, 0x1F1FF)


@cache
def _is(letter: str, property: str) -> bool:
    import regex  # type: ignore[import-untyped, unused-ignore]  # the tables of Unicode's properties, and nothing else of it

    return regex.fullmatch(rf"\p{{{property}}}", letter) is not None


# Rule 3: folding.


def _fold(text: str) -> str:
    text = _few_marks("".join(map(_instead, text)))
    text = "".join(map(_instead, unicodedata.normalize("NFKD", text)))
    text = "".join(letter for letter in text if not any(_within(letter, *bounds) for bounds in GONE))
    kept = [
        letter
        for number, letter in enumerate(text)
        if letter != JOINER or (_is_drawn(text[number - 1 : number]) and _is_drawn(text[number + 1 : number + 2]))
    ]
    return unicodedata.normalize("NFC", _few_marks("".join(kept)))


def without_accents(token: str) -> str:
    """A token as its term has it (rule 12)."""
    letters = "".join(LETTERS.get(letter, letter) for letter in unicodedata.normalize("NFD", token))
    kept = "".join(letter for letter in letters if not any(_within(letter, *bounds) for bounds in ACCENTS))
    return unicodedata.normalize("NFC", kept)


def _few_marks(text: str) -> str:
    """The text with the first 30 of each run of marks, the two half-width voicing marks among them."""
    kept, run = [], 0
    for letter in text:
        run = run + 1 if letter in "\uff9e\uff9f" or unicodedata.category(letter).startswith("M") else 0
        if run <= 30:
            kept.append(letter)
    return "".join(kept)


def _instead(letter: str) -> str:
    if letter in SPACES or _within(letter, 0x2012, 0x2027):
        return " "
    return "-" if letter in HYPHENS else letter


def _is_drawn(letter: str) -> bool:
    return letter != "" and (_within(letter, 0x2190, 0x2BFF) or _within(letter, 0x1F000, 0x1FAFF))


def _lower(text: str) -> str:
    return unicodedata.normalize("NFC", text.casefold())


# Rules 5 to 8: from a chunk to its words.


def _chunk_tokens(chunk: Chunk) -> list[str]:
    if len("".join(chunk)) > LONGEST_CHUNK:
        return [token for words in chunk[::2] for word in words.split("_") for token in _word_tokens(word)]
    tokens = _whole(chunk) if len(_groups(chunk, PATH_JOINTS)) > 1 else []
    for piece in _groups(chunk, PATH_JOINTS):
        parts = _groups(piece, ("-", "+")) if _holds_version(piece) else [piece]
        tokens += _whole(piece) if len(parts) > 1 else []
        for dotted in parts:
            names = _groups(dotted, (".",))
            tokens += _whole(dotted) if len(names) > 1 else []
            for name in names:
                tokens += _whole(name) if len(name) > 1 or "_" in name[0] else []
                tokens += [token for words in name[::2] for word in words.split("_") for token in _word_tokens(word)]
    return tokens


def _groups(chunk: Chunk, joints: tuple[str, ...]) -> list[Chunk]:
    """The chunk cut at some joints, which are left out."""
    return [list(group) for cut, group in groupby(chunk, lambda part: part in joints) if not cut]


def _is_number(word: str) -> bool:
    return word != "" and all(letter in DIGITS for letter in word)


def _begins_version(chunk: Chunk) -> bool:
    """Whether the first word is digits, or a v and digits, and a dot follows."""
    return chunk[1:2] == ["."] and (_is_number(chunk[0]) or (chunk[0][0] in "vV" and _is_number(chunk[0][1:])))


def _holds_version(piece: Chunk) -> bool:
    begins = [0, *(number + 1 for number, part in enumerate(piece) if part in ("-", "+"))]
    return any(_begins_version(piece[at:]) and piece[at + 2][0] in DIGITS for at in begins)


def _whole(piece: Chunk) -> list[str]:
    written = {"-": "", "\\": "/", "//": "/", "\\\\": "/"}
    first = piece[0][1:] if piece[0][0] in "vV" and _begins_version(piece) else piece[0]
    whole = _lower(first + "".join(written.get(part, part) for part in piece[1:]))
    return [whole] if any(letter.isalnum() for letter in whole) else []


# Rules 9 to 11: from a word to its tokens.


@cache
def _word_tokens(word: str) -> tuple[str, ...]:
    tokens: list[str] = []
    # A letter belongs with its marks. Marks at the begin of a word belong to none.
    signs: list[tuple[bool, str]] = []
    for letter in word:
        if signs and _is(letter, "M"):
            signs[-1] = (signs[-1][0], signs[-1][1] + letter)
        elif _is_sign(letter) or not _is(letter, "M"):
            signs.append((_is_sign(letter), letter))
    for unspaced, group in groupby(signs, lambda sign: sign[0]):
        run = [letters for _, letters in group]
        if unspaced:
            tokens += [one + other for one, other in pairwise(run)] or run
        else:
            tokens += _run_tokens("".join(run))
    return tuple(tokens)


def _is_sign(letter: str) -> bool:
    if letter.isascii():
        return False
    scripts = ["Han", "Hiragana", "Katakana", "Hangul"]
    if _is(letter, "L"):
        scripts += ["Thai", "Lao", "Khmer", "Myanmar"]
    return letter == "ー" or any(_is(letter, f"Script={name}") for name in scripts)


def _run_tokens(run: str) -> list[str]:
    cuts = [at for at in range(1, len(run)) if _is_cut(run, at)] if len(run) <= LONGEST_CUT_BY_CASE else []
    letters = run.rstrip(DIGITS)
    if not cuts and letters not in ("", run) and all(_is(letter, "L") or _is(letter, "M") for letter in letters):
        cuts = [len(letters)]
    key = run.isascii() and len(run) >= SHORTEST_KEY and not run.isalpha() and not _is_number(run)
    parts = [run[begin:end] for begin, end in pairwise([0, *cuts, len(run)])]
    return [_lower(part) for part in ([run] if key or cuts else []) + parts]


def _is_cut(run: str, at: int) -> bool:
    """Whether a capital that stands here begins a part."""
    before, after = run[at - 1], run[at + 1 : at + 2]
    if not _is(run[at], "Lu"):
        return False
    # The s of IDs makes no part of its own.
    plural = after == "s" and not _is(run[at + 2 : at + 3], "Ll")
    behind = at - 1
    while behind > 0 and _is(run[behind], "M"):
        behind -= 1
    return (
        _is(run[behind], "Ll")
        or (_is(before, "N") and _is(after, "Ll"))
        or (_is(before, "Lu") and _is(after, "Ll") and not plural)
    )
