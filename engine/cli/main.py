"""The command line: the group of all commands, and how errors are shown.

A command stands in the file that is named after it. `index`, `add`, `delete` and `stats` are in engine/cli/store.py,
`export`, `import`, `copy` and `columns` in engine/cli/carry.py.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from ..errors import FanrankError
from .backup import backup, restore
from .carry import columns_command, copy_command, export_command, import_command
from .check import check
from .demo import demo
from .doctor import doctor
from .evaluate import evaluate_command
from .search import search
from .store import add, delete, index, stats
from .tune import tune


class _Group(click.Group):
    """Turns every `FanrankError` into one line on standard error and exit code 2. A broken pipe ends quietly."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FanrankError as error:
            click.echo(f"fanrank: {error}", err=True)
            ctx.exit(2)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)


@click.group(
    cls=_Group,
    commands=[
        demo,
        index,
        add,
        delete,
        stats,
        backup,
        restore,
        search,
        export_command,
        import_command,
        copy_command,
        columns_command,
        evaluate_command,
        tune,
        check,
        doctor,
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="fanrank")
def main() -> None:
    """Rank a planner's whole fan-out in one launch, and get the same bits everywhere."""


if __name__ == "__main__":
    main()
