"""The commands of verbs that a memory offers by their declaration (engine/offered.py)."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from ..offered import COMMAND, Offered, offered_at
from .options import declared_option, json_option, open_memory, read_value, served_argument
from .output import print_result
from .values import parse_filters


def _command(verb: Offered) -> click.Command:
    def run(path: str, namespace: str | None = None, as_json: bool = False, **values: Any) -> None:
        given: dict[str, Any] = {"namespace": namespace} if verb.in_namespace else {}
        given |= {"progress": True} if verb.shows else {}
        with open_memory(path, read_only=not verb.writes) as memory:
            for name, field in verb.parameters.items():
                value = read_value(field, values[name])
                given[name] = parse_filters(value, memory.columns) if field.kind == "filter" else value
            answer = verb.to_json(getattr(memory, verb.name)(**given))
        report = isinstance(answer, dict)
        lines = answer if isinstance(answer, list) else [answer]
        if report:
            lines = [f"{name:20} {json.dumps(value, ensure_ascii=False)}" for name, value in answer.items()]
        text = "\n".join(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
        print_result({"path": path, verb.name: answer}, as_json, text)
        if report and answer.get("passed") is False:
            sys.exit(1)

    decorated: Any = json_option(run)
    if verb.in_namespace:
        default = "all" if verb.namespace is None else "the unnamed one"
        about = f"Namespace of the records. Default: {default}."
        decorated = click.option("--namespace", default=verb.namespace, help=about)(decorated)
    paths = [field for field in verb.parameters.values() if field.kind == "path"]
    for field in reversed(verb.parameters.values()):
        decorated = decorated if field in paths else declared_option(field)(decorated)
    decorated = served_argument(decorated)
    for field in paths:  # a file is named before the memory
        decorated = click.argument(field.name, type=click.Path())(decorated)
    return click.command(verb.name.replace("_", "-"), help=verb.about.replace("``", "'"))(decorated)


COMMANDS = [_command(verb) for verb in offered_at(COMMAND)]
