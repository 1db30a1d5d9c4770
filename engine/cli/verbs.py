"""The commands of verbs that a memory offers by their declaration (engine/offered.py)."""

from __future__ import annotations

import json
from typing import Any

import click

from ..offered import COMMAND, Offered, offered_at
from .options import declared_option, json_option, open_memory, read_value, served_argument
from .output import print_result
from .values import parse_filters


def _command(verb: Offered) -> click.Command:
    def run(path: str, namespace: str = "", as_json: bool = False, **values: Any) -> None:
        given: dict[str, Any] = {"namespace": namespace} if verb.in_namespace else {}
        with open_memory(path, read_only=not verb.writes) as memory:
            for name, field in verb.parameters.items():
                value = read_value(field, values[name])
                given[name] = parse_filters(value, memory.columns) if field.kind == "filter" else value
            answer = verb.to_json(getattr(memory, verb.name)(**given))
        lines = answer if isinstance(answer, list) else [answer]
        text = "\n".join(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
        print_result({"path": path, verb.name: answer}, as_json, text)

    decorated: Any = json_option(run)
    if verb.in_namespace:
        decorated = click.option("--namespace", default="", help="Namespace of the records. Default: the unnamed one.")(
            decorated
        )
    for field in reversed(verb.parameters.values()):
        decorated = declared_option(field)(decorated)
    return click.command(verb.name.replace("_", "-"), help=verb.about.replace("``", "'"))(served_argument(decorated))


COMMANDS = [_command(verb) for verb in offered_at(COMMAND)]
