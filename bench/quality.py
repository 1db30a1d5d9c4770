"""Retrieval quality of every analyzer and protocol, as rows: ``python -m bench.quality``.

Appends to ``bench/results/quality.jsonl`` one object an evaluation: what ``fanrank eval --json`` prints, with machine,
commit and date.
"""

import sys
from collections.abc import Sequence
from typing import Any

from fanrank.engine.errors import FanrankError
from fanrank.engine.evaluate import evaluate
from fanrank.engine.text.analyzers import ANALYZERS

from .harness.command import Command
from .harness.paths import data_folder

BEIR = ("scifact", "cranfield")
PROTOCOLS = ("agentir", "opsem", "default")


def runs() -> list[tuple[str, str, dict[str, Any]]]:
    """(kind, path below the data folder, options) of every evaluation."""
    plain = [name for name in ANALYZERS if name != "opsem"]
    return [
        *(("beir", name, {"analyzer": analyzer}) for name in BEIR for analyzer in plain),
        *(("locomo", "locomo/locomo10.json", {"preset": preset}) for preset in PROTOCOLS),
        *(("locomo", "locomo/locomo10.json", {"analyzer": analyzer}) for analyzer in plain),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every evaluation whose data is present."""
    command = Command("quality", "Retrieval quality of every analyzer and protocol.")
    command.parse(arguments)
    for kind, path, options in runs():
        command.say(f"quality: {path} {options}")
        try:
            command.keep([evaluate(kind, data_folder() / path, latency=None, **options)])
        except FanrankError as error:
            command.keep([{"dataset": path, **options, "error": str(error)}])
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
