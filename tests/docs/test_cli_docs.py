"""docs/cli.md is what the commands say, and each command and option says something."""

from __future__ import annotations

from pathlib import Path

import click
from support import cli_docs

from fanrank.engine.cli.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / cli_docs.PAGE


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == cli_docs.render(), "`make docs` writes it anew"


def test_every_command_and_option_has_help() -> None:
    assert cli_docs.options_without_help(main) == []


def test_the_page_names_every_command_and_option() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, command in main.commands.items():
        section = page.split(f"## fanrank {name}\n")[1].split("\n## ")[0]
        for option in cli_docs.options_of(command):
            assert f"`{option.opts[-1]}`" in section


def test_planted_faults_are_caught() -> None:
    @click.group()
    def group() -> None:
        """A group."""

    @group.command()
    @click.option("--known", default=3, show_default=True, help="Number of things.")
    @click.option("--unknown")
    def first() -> None:
        """A command."""

    @group.command()
    @click.option("--blank", help=" ")
    def second() -> None: ...

    assert cli_docs.options_without_help(group) == ["second", "first --unknown", "second --blank"]
    assert "- `--known` `INTEGER`: Number of things. Default: `3`." in cli_docs.render(group)
    assert cli_docs.render(group) != cli_docs.render()
