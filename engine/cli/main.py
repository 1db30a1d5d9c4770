"""The command line: the group of all commands, and how errors are shown.

A command stands in the file that is named after it. `add`, `delete`, `stats` and `vacuum` are in
engine/cli/store.py, `list` and `count` in engine/cli/list.py, `export`, `copy` and `columns` in engine/cli/carry.py.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from ..advice import in_options
from ..errors import FanrankError, ParameterError
from .backup import backup, restore
from .carry import columns_command, copy_command, export_command
from .check import check
from .demo import demo
from .doctor import doctor
from .evaluate import evaluate_command
from .hook import hook_command
from .keys import keys
from .list import count_command, list_command
from .mcp import mcp_command
from .published import published
from .search import search
from .serve import serve
from .shards import shards_command
from .store import add, delete, stats, vacuum
from .tune import tune
from .verbs import COMMANDS

WHOLE = 1_000
"""More characters than the first sentence of any command's help has."""
FAILED, INTERRUPTED = 2, 130
"""Exit codes of an error and, as shells count it, of an interrupt. A comparison that finds differences exits with 1."""


GONE = {"index": "fanrank add MEMORY FILE", "import": "fanrank add MEMORY FILE --resume"}
"""Commands that are no more, and what does their work."""


class _Group(click.Group):
    """Ends every failure in one line on standard error.

    A `FanrankError` and a standard output that cannot be written exit with 2, an interrupt with 130. A pipe that is
    closed by its reader, as `head` does, ends the command without a word and with 1.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's own, which cuts each first sentence to the width; here it goes on in the next line."""
        rows = [(name, command.get_short_help_str(WHOLE)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def main(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().main(*arguments, **options)
        except OSError as error:
            # Failures of files are named errors, or name the file. What is left is the stream that is printed to.
            if error.filename is not None:
                raise
            _discard_output()
            click.echo(f"fanrank: standard output: cannot be written: {error.strerror or error}", err=True)
            sys.exit(FAILED)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] in GONE:
            raise ParameterError(f"fanrank {args[0]} is no more; write {GONE[args[0]]}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FanrankError as error:
            click.echo(f"fanrank: {in_options(str(error))}", err=True)
            ctx.exit(FAILED)
        except KeyboardInterrupt:
            click.echo("fanrank: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            _discard_output()
            ctx.exit(1)


def _discard_output() -> None:
    """Let the interpreter end without another error: it writes what standard output still holds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    cls=_Group,
    commands=[
        demo,
        add,
        delete,
        list_command,
        count_command,
        stats,
        vacuum,
        backup,
        restore,
        search,
        serve,
        mcp_command,
        hook_command,
        keys,
        export_command,
        copy_command,
        columns_command,
        shards_command,
        evaluate_command,
        published,
        tune,
        check,
        doctor,
        *COMMANDS,
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="fanrank")
def main() -> None:
    """Rank a planner's whole fan-out in one launch, and get the same bits everywhere."""


if __name__ == "__main__":
    main()
