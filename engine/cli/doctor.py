"""`fanrank doctor`: shows which backend would serve on this machine, and why the others would not."""

from __future__ import annotations

import importlib.util
import os
import platform

import click
import numpy as np

from ..backends import choose as backends
from ..errors import BackendUnavailableError, MissingExtraError
from ..text.analyzers import DEFAULT_ANALYZER, get_analyzer
from ..text.dispatch import choose_token_path
from .options import json_option
from .output import print_json

EXTRAS = {"gpu": "torch", "eval": "pytrec_eval", "tables": "pyarrow", "tune": "sklearn"}
"""Extra -> a module that it installs."""


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Show which backend would serve, why each other would not, and how texts are turned into term ids."""
    try:
        chosen = backends.choose()
        served, reason = chosen.name, chosen.reason
    except BackendUnavailableError as error:
        served, reason = None, str(error)
    extras = {extra: importlib.util.find_spec(module) is not None for extra, module in EXTRAS.items()}
    text = choose_token_path(get_analyzer(DEFAULT_ANALYZER))
    result = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "backend": served,
        "reason": reason,
        "backends": [vars(status) for status in backends.statuses()],
        "text": vars(text),
        "extras": extras,
    }
    if as_json:
        print_json(result)
        return
    click.echo(f"Python {result['python']}, numpy {result['numpy']}, {result['cpus']} CPUs, {result['platform']}")
    for status in backends.statuses():
        click.echo(f"  {status.name:8} {'usable' if status.usable else 'not usable'}: {status.reason}")
    click.echo(f"would serve: {served or 'none'} ({reason})")
    click.echo(f"text to term ids: {text}")
    for extra, installed in extras.items():
        click.echo(f"  extra {extra}: {'installed' if installed else str(MissingExtraError(EXTRAS[extra], extra))}")
