"""`fanrank backup` and `restore`: copies of an engine's directory, made, checked and brought back."""

from __future__ import annotations

import os

import click

from ...shards.choosing import memory_class, open_directory, refuse_address
from ..errors import ParameterError
from .options import json_option, memory_argument
from .output import print_result


@click.command()
@memory_argument
@click.argument("target", type=click.Path(), required=False)
@click.option("--check", is_flag=True, help="Check MEMORY, which may be a backup, and copy nothing.")
@json_option
def backup(path: str, target: str | None, check: bool, as_json: bool) -> None:
    """Copy MEMORY to the new directory TARGET, also while another process writes to it.

    The copy is of one moment, and appears in one step once all of it is on the disk.
    """
    if check == (target is not None):
        raise ParameterError("give the directory and where to copy it, or one directory and --check")
    if target is None:
        report = memory_class(path).check_backup(path, progress=True)
        text = f"{report.records:,} records in {report.namespaces:,} namespace(s), all whole: {path}"
        if report.index != "whole":
            text += f"\nindex files: {report.index}; they are built anew when it is opened"
        if report.partial:
            text += f"\nleft by interrupted copies to this place, to be deleted: {', '.join(report.partial)}"
    else:
        with open_directory(path, read_only=True, progress=True) as engine:
            report = engine.backup(target, progress=True)
        text = f"{report.records:,} records in {report.namespaces:,} namespace(s) copied: {target}"
    print_result(report.to_dict(), as_json, text)


@click.command()
@memory_argument
@click.argument("backup", type=click.Path())
@json_option
def restore(path: str, backup: str, as_json: bool) -> None:
    """Make the new MEMORY of BACKUP, which is checked first."""
    refuse_address(path)
    if os.path.exists(path) and not os.path.exists(backup):
        raise ParameterError(f"fanrank restore takes the new memory first: fanrank restore {backup} {path}")
    report = memory_class(backup).restore(backup, path, progress=True)
    print_result(report.to_dict(), as_json, f"{report.records:,} records restored: {path}")
