"""Fits the weights of the strategies for dialogues: ``python -m bench.dialogues``. Prints; keeps no rows.

They are fitted to half of LoCoMo's conversations and half of the chats with assistants, whose questions count `CHATS`
times, as they are a fifth as many. They are measured on the other halves, then the other way around; and on sets that
fit nothing, by both fits. The product has the weights of the first halves. `EXCHANGES` is fitted to the turns of the
chats alone, and measured by their exchanges.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fanrank.engine.encoders.encoder import Encoder
from fanrank.engine.engine import Engine
from fanrank.engine.evaluate.dataset import Dataset, by_exchange
from fanrank.engine.evaluate.protocol import prepare_dataset, rank
from fanrank.engine.fuse.linear import Linear
from fanrank.engine.hybrid.strategy import NAMED, Strategy
from fanrank.engine.tune.measure import labelled_questions
from fanrank.engine.tune.weights import Evidence, collect

from .harness.command import Command
from .harness.paths import data_folder
from .harness.vectors import add_encoder, encoder_of
from .strategies import METRICS, SETS, halves

FITTED = ("locomo-turns", "assistant-chats")
OTHERS = ("assistant-chats-roleless", "sgd-held-out", "sgd-typed")
CHATS = 2
NAMES = ("dialogue", "dialogue-words")
EXCHANGES = "dialogue-exchanges"


def engine_over(dataset: Dataset, strategy: Strategy, encoder: Encoder) -> Engine:
    return Engine.from_records(dataset.records, encoder=encoder if strategy.dense else None)


def fit_halves(strategy: Strategy, sets: Sequence[Dataset], encoder: Encoder) -> list[dict[str, float]]:
    """The weights that the halves which tune give, and those of the others. A second set counts `CHATS` times."""
    assert isinstance(strategy.fusion, Linear)
    parts, questions, tunes = [], [], []
    for dataset, times in zip(sets, (1, CHATS), strict=False):
        labelled = labelled_questions(dataset)
        found = collect(engine_over(dataset, strategy, encoder), labelled, strategy)
        parts += found * times
        questions += labelled * times
        tunes += [halves(dataset)] * times
    evidence, first = Evidence.of(parts, questions, strategy.fusion), np.concatenate(tunes)
    return [evidence.fit(first), evidence.fit(~first)]


def measure(dataset: Dataset, strategy: Strategy, encoder: Encoder) -> dict[str, np.ndarray]:
    """Each question's metrics."""
    asked = prepare_dataset(dataset, strategy, "none", encoder=encoder if strategy.dense else None)
    return rank(engine_over(dataset, strategy, encoder), asked, k=20, complete=False, strategy=strategy).values


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit and measure."""
    command = Command("dialogues", "Fits the weights of the strategies for dialogues.", "quality")
    add_encoder(command)
    encoder = encoder_of(command.parse(arguments))
    sets = {name: SETS[name](data_folder()) for name in (*FITTED, *OTHERS)}
    chats = FITTED[1]
    for name in (*NAMES, EXCHANGES):
        strategy = NAMED[name]
        assert isinstance(strategy.fusion, Linear)
        of_exchanges = name == EXCHANGES
        measured = {chats: by_exchange(sets[chats])} if of_exchanges else sets
        for side, weights in enumerate(
            fit_halves(strategy, [sets[own] for own in ((chats,) if of_exchanges else FITTED)], encoder)
        ):
            print(f"{name}, fitted to the {('first', 'second')[side]} halves: {weights}", flush=True)
            fitted = replace(strategy, fusion=replace(strategy.fusion, weights=weights))
            for own, dataset in measured.items():
                values = measure(dataset, fitted, encoder)
                tunes = halves(dataset)
                counted = np.ones(len(tunes), dtype=np.bool_) if own.startswith("sgd") else tunes == bool(side)
                figures = " ".join(f"{values[metric][counted].mean():.3f}" for metric in METRICS)
                print(f"  {own:26} {int(counted.sum()):5} questions  {figures}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
