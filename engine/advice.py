"""What messages of the engine advise, in the words of the door at which they are read."""

from __future__ import annotations

import re

_SERVER = "start the server with --encoder"
ADVICE: tuple[tuple[str, str, str], ...] = (
    (r"give upsert=True", "give --upsert", "say upsert=true"),
    (r"say format=", "say --format", "say its format"),
    (r"replace the record with update", "replace the record with --upsert", 'write it with "mode": "upsert"'),
    (r"\(vectors=False\)", "(--no-vectors)", "(vectors=false)"),
    (r"open with accept_loss=True", "give --accept-loss", "give --accept-loss to the server"),
    (r" \(readers may open it with read_only=True\)", "", ""),
    (r", or open the directory with wait=True", "", ""),
    (
        r"make (?:the engine|it) with encoder='own:(\w+)'( for vectors of your own, or with a model's name)?",
        r"make the directory with --encoder own:\1\2",
        rf"{_SERVER} own:\1\2",
    ),
    (
        r"make it with encoder='model name', or with fanrank\.OwnVectors\(dimension\)",
        "make it with --encoder MODEL, or with --encoder own:DIMENSION",
        f"{_SERVER} MODEL, or with --encoder own:DIMENSION",
    ),
    (r"open (?:the engine|it) with encoder=(?:\.\.\.)?", "give --encoder MODEL", f"{_SERVER} MODEL"),
    (
        r"make the engine with term_encoder=\.\.\.",
        "give --term-encoder MODEL",
        "start the server with --term-encoder MODEL",
    ),
    (
        r"Declare it where the index is made \(columns=(\{.*?\}), (`.*?`)\), or later, where the records are kept "
        r"\(add_column\(.*?\), (`.*?`)\)",
        r"Declare it where the index is made (\2), or later, where the records are kept (\3)",
        "POST /v1/add_column declares it, with a key of everything",
    ),
    (
        r"make the engine with fields=\{.*?\}",
        "make the directory with --field NAME=WEIGHT",
        "start the server of a new memory with --field NAME=WEIGHT",
    ),
    (r"keep it in fields=, as in fields=\{.*?\}", "keep it with --field NAME=WEIGHT", "keep it"),
    (r"use Engine\.open(?:\(path\))?", "use a directory", "serve a directory"),
    (r", (?:or )?an engine in memory without keep_texts=False", "", ""),
    (r" \(Engine\.open\(path\), or one in memory\)", "", ""),
    (r"; pass time\.time\(\) for the wall clock", "", ""),
    (
        r"for a namespace called ('\w+') pass fanrank\.routing\.ByNamespace\(\{\.\.\.\}\)",
        *(r"no namespace \1 alone",) * 2,
    ),
    (r"a scope is made by SearchScope\..*?everything\(\)", *("a scope has a column, session or user, and an id",) * 2),
    (r"; to delete a whole namespace use drop", "", "; DELETE /v1/namespaces/NAME deletes a whole namespace"),
    (r"\. Pass one of your own to fanrank\.text\.register_analyzer before you name it or open its records", "", ""),
    (r"(?:Engine\.load|Engine\.open|fanrank\.ShardedEngine\.open),? or (?=`)", "", ""),
    (
        r"a filter must be a comparison such as col\('role'\) == 'tool'",
        *('a filter must be an object, as {"role": "tool"}',) * 2,
    ),
    (r", or be a comparison such as col\('role'\) == 'tool'", "", ""),
    (r"; repair it with value\.encode.*?'replace'\)", "", ""),
    (r"\b(distinct|collapse)='text'", "--\\1 text", '"\\1": "text"'),
    (r"give it one: Query\(strategy=\.\.\.\)", *("give it a strategy of its own",) * 2),
    (r"\bfresh=(True|False)", r"fresh \1", r"fresh \1"),
    (r", or (?:fusion|feedback)_of\(name\)", "", ""),
)
"""Patterns of advice for programs in Python, and what the command line and REST say instead."""


def in_options(message: str) -> str:
    """A message of the engine in the words of the command line."""
    for pattern, option, _ in ADVICE:
        message = re.sub(pattern, option, message)
    return message


def in_fields(message: str) -> str:
    """A message of the engine in the words of REST and of tools."""
    for pattern, _, field in ADVICE:
        message = re.sub(pattern, field, message)
    return message
