"""Studies that compare lexical, dense and fused retrieval on a dataset, in the form of the papers' tables.

On conversations (SPEC D008 to D018), one `Candidates` batch holds the scores of every channel for every session of each
question's conversation. All systems are computed from it: each channel alone, reciprocal ranks, and z-score fusion. The
fusion's alpha for a conversation is fitted on the other conversations (D004). A ranking covers all sessions of the
conversation, and equal scores stand in document order (D008). On documents (E011, E029) each system is a strategy.
"""

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fanrank.engine.arrays import Flags, Floats, Integers, offsets_of
from fanrank.engine.encoders.encoder import Encoder
from fanrank.engine.errors import ParameterError, choices
from fanrank.engine.evaluate.comparison import differences_of, study_strategies
from fanrank.engine.evaluate.dataset import Dataset
from fanrank.engine.evaluate.encoders import describe_encoder, open_encoder
from fanrank.engine.evaluate.presets import LOADERS, Preset, check_reading, find_preset
from fanrank.engine.evaluate.protocol import default_depth, engine_of, rank
from fanrank.engine.fuse.alpha import ALPHAS, AlphaFit, fit_alpha
from fanrank.engine.fuse.candidates import Candidates
from fanrank.engine.fuse.rrf import RRF
from fanrank.engine.fuse.zscore import ZScore
from fanrank.engine.hybrid.strategy import BM25, AnyChannel, Dense, Lexical, Strategy
from fanrank.engine.metrics.bootstrap import cluster_bootstrap
from fanrank.engine.metrics.ranking import means, per_query, trec_eval
from fanrank.engine.vectors.interaction import Interaction

STRONGER = "bm25-stronger"
"""The stronger lexical system, over texts with date lines and captions (R42). Only LoCoMo has it."""
LATE = "dense-late"

INTERACTIONS: dict[str, Interaction] = {
    "dense-early": Interaction("early"),
    LATE: Interaction("late"),
    "dense-top3": Interaction("top", rows=3),
    "dense-lse10": Interaction("lse", beta=10.0),
    "dense-lme10": Interaction("lme", beta=10.0),
}
"""The dense channels of the study (D001, X26)."""

DOCUMENTS = ("bm25", "dense", "rrf", "minmax", "softcentroid", "softcentroid-fused")
"""The strategies that are compared on documents."""

METRICS = ("hit@1", "recall@1", "recall@3", "recall@5", "mrr", "ndcg@5")
"""Hit@1 and Recall@1 differ for a question with two or more gold sessions (X22)."""

LENGTHS = ((1, 7), (8, 15), (16, 25), (26, None))
"""Ranges of the number of turns in a question's longest gold session (D018)."""

DIFFERENCES = (
    (LATE, "dense-early"),
    ("dense-top3", LATE),
    ("dense-lme10", "dense-lse10"),
    ("dense-lme10", LATE),
    ("rrf", BM25),
    ("fused", BM25),
    ("fused", LATE),
    ("fused", "rrf"),
    ("fused", "fused-early"),
    (STRONGER, "fused"),
    ("fused-stronger", STRONGER),
    ("fused-stronger", "fused"),
)
"""(first, second) systems whose Hit@1 is compared."""

DETAILED = (BM25, "dense-early", LATE, "rrf", "fused", STRONGER, "fused-stronger")
"""The systems that are broken down by category and by length."""


@dataclass(frozen=True, eq=False)
class System:
    """A system's scores for all sessions, [sessions]. Sessions that are not `kept` rank last."""

    scores: Floats
    kept: Flags


# Sources: R42.
def study(
    kind: str,
    path: str | os.PathLike[str],
    *,
    encoder: str | Encoder,
    embeddings: str | os.PathLike[str] | None = None,
    preset: str = "default",
    split: str = "test",
    reading: Mapping[str, Any] | None = None,
    strategies: Sequence[str | Strategy] = DOCUMENTS,
    backend: str | None = None,
    threads: int = 1,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """Load and index a dataset and study it: `study_conversations` for locomo and longmemeval, else `study_strategies`.

    `kind`, `preset`, `split`, `encoder`, `embeddings`, `reading` and the errors are as in `evaluate`. `strategies` are
    those of documents, and `seed` is that of the bootstraps. LoCoMo's stronger lexical system uses the default preset's
    analyzer and parameters over texts with date lines and captions.
    """
    trec_eval()
    chosen = find_preset(preset, kind)
    options = {**chosen.reading, **({"split": split} if kind == "beir" else {}), **(reading or {})}
    check_reading(kind, options)
    dataset = LOADERS[kind](path, **options)
    model = open_encoder(encoder, embeddings)
    engine = engine_of(dataset, chosen, encoder=model, backend=backend, progress=progress)
    if kind == "beir":
        depth = default_depth(dataset)
        evaluations = {
            strategy.name: rank(engine, dataset, k=depth, complete=chosen.complete, threads=threads, strategy=strategy)
            for strategy in map(Strategy.of, strategies)
        }
        result = study_strategies(evaluations, seed=seed)
    else:
        channels: tuple[AnyChannel, ...] = (Lexical(), *(Dense(how, name=name) for name, how in INTERACTIONS.items()))
        everything = Strategy("study", channels, RRF(), depth=None, complete=True)
        gathered, _ = engine.candidates(dataset.queries, everything)
        stronger = None
        if kind == "locomo":
            better = LOADERS[kind](path, **{**options, "date": True, "captions": True})
            lexical = engine_of(better, Preset(), backend=backend, progress=progress)
            stronger, _ = lexical.candidates(better.queries, Strategy(BM25).deep(complete=True))
        result = study_conversations(dataset, gathered, stronger=stronger, seed=seed)
    return {
        **result,
        "preset": preset,
        "analyzer": chosen.analyzer,
        "parameters": {**chosen.scoring(), **options},
        "encoder": describe_encoder(model),
        "backend": engine.backend.name,
    }


# Sources: D009.
def study_conversations(
    dataset: Dataset,
    candidates: Candidates,
    *,
    stronger: Candidates | None = None,
    resamples: int = 4_000,
    seed: int = 0,
) -> dict[str, Any]:
    """The study as one object of plain JSON values. `render` shows it as text.

    `candidates` follow the dataset's queries and hold every session of each question's conversation. Document numbers
    count a namespace's records in the dataset's order. The channels are ``bm25``, ``dense-late``, and any others of
    `INTERACTIONS`. `stronger` holds the candidates of an engine with another text and analyzer. Only its channel
    ``bm25`` is used, which takes the place of BM25 in ``fused-stronger``.

    The fused systems are ``fused`` (with ``dense-late``, that is max-sim), ``fused-early``, and so on. ``differences``
    are those of Hit@1; their bootstrap draws conversations `resamples` times by `seed`, p is one-sided, and ``p_holm``
    is corrected for their number.

    Raises `ParameterError` for candidates of other queries or documents, a missing channel, or a dataset with fewer
    than two clusters.
    """
    groups = [dataset.clusters.get(str(query.id), "") for query in dataset.queries]
    sessions = _Sessions(dataset)
    sessions.check(candidates)
    channels = dict(candidates.channels)
    for name in (BM25, LATE):
        if name not in channels:
            raise ParameterError(f"the study needs the channel {name!r}{choices(name, channels)}")
    if stronger is not None:
        sessions.check(stronger)
        channels[STRONGER] = stronger.channels[BM25]
    everything = replace(candidates, channels=channels)

    systems = {name: System(channel.scores, channel.scored) for name, channel in channels.items()}
    ranks = RRF()(replace(candidates, channels={name: channels[name] for name in (BM25, LATE)}))
    systems["rrf"] = System(ranks.scores, ranks.kept)
    pairs = {_name_fused(name): (BM25, name) for name in INTERACTIONS if name in channels}
    if stronger is not None:
        pairs["fused-stronger"] = (STRONGER, LATE)
    fits: dict[str, AlphaFit] = {}
    for name, (first, second) in pairs.items():
        systems[name], fits[name] = _fit(everything, sessions, groups, first, second)

    values = {
        name: per_query(sessions.lists(system), dataset.relevant, METRICS)
        for name, system in sorted(systems.items(), key=lambda item: _place_of(item[0]))
    }
    hits = {name: columns["hit@1"] for name, columns in values.items()}
    detailed = {name: hits[name] for name in DETAILED if name in hits}
    turns = sessions.longest()
    return {
        "study": "conversations",
        "dataset": dataset.name,
        "n": len(dataset.queries),
        "clusters": len(set(groups)),
        "systems": {name: means(columns) for name, columns in values.items()},
        "differences": differences_of(
            hits, DIFFERENCES, lambda a, b: cluster_bootstrap(a, b, groups, resamples=resamples, seed=seed)
        ),
        "categories": _break_down(
            detailed, _by([dataset.categories.get(str(query.id), "") for query in dataset.queries])
        ),
        "lengths": _break_down(
            detailed,
            {
                f"{low}+" if high is None else f"{low}-{high}": (turns >= low) & (turns <= (high or np.inf))
                for low, high in LENGTHS
            },
        ),
        "alpha": {name: fit.to_dict() for name, fit in fits.items()},
    }


class _Sessions:
    """All sessions of each question's conversation. Those of question b stand at [offsets[b], offsets[b + 1])."""

    def __init__(self, dataset: Dataset) -> None:
        members = dataset.members()
        self.dataset = dataset
        self.ids = [members.get(query.namespace, []) for query in dataset.queries]
        self.sizes = np.array([len(ids) for ids in self.ids], dtype=np.int64)
        if not self.sizes.all():
            raise ParameterError(f"question {dataset.queries[int(np.argmin(self.sizes))].id!r} has no session to rank")
        self.offsets = offsets_of(self.sizes)
        self.owners = np.repeat(np.arange(len(self.sizes)), self.sizes)
        judged = (dataset.relevant[str(query.id)] for query in dataset.queries)
        self.gold = np.array(
            [grades.get(name, 0) > 0 for ids, grades in zip(self.ids, judged, strict=True) for name in ids], dtype=bool
        )

    def check(self, candidates: Candidates) -> None:
        """Raise `ParameterError` unless the candidates are all sessions of each question, and no others."""
        if len(candidates) != len(self.sizes):
            raise ParameterError(f"{len(self.sizes)} questions, but candidates of {len(candidates)} queries")
        documents = np.arange(len(self.owners)) - self.offsets[:-1][self.owners]
        if not (np.array_equal(candidates.offsets, self.offsets) and np.array_equal(candidates.documents, documents)):
            raise ParameterError(
                "a study needs every session of a question's conversation as a candidate, and no other: gather them "
                "with a strategy that is complete, from an engine with the dataset's records in their order"
            )

    def order(self, system: System) -> Integers:
        """[sessions] numbers of the sessions, question by question, each question's from best to worst."""
        return np.lexsort((np.where(system.kept, -system.scores, 0.0), ~system.kept, self.owners))

    def hits(self, system: System) -> Floats:
        """[questions] Hit@1: 1 if the first session is gold, else 0."""
        hits: Flags = self.gold[self.order(system)[self.offsets[:-1]]]
        return hits.astype(np.float64)

    def lists(self, system: System) -> dict[str, list[str]]:
        """``{query id: record ids}``, ids from best to worst."""
        order = self.order(system)
        return {
            str(query.id): [ids[number - start] for number in order[start:end].tolist()]
            for query, ids, start, end in zip(
                self.dataset.queries, self.ids, self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True
            )
        }

    def longest(self) -> Integers:
        """[questions] the number of passages of the longest gold session."""
        passages = {(r.namespace, r.id): len(r.passages or ()) for r in self.dataset.records}
        return np.array(
            [
                max(
                    (passages.get((query.namespace, name), 0) for name, grade in judged.items() if grade > 0), default=0
                )
                for query, judged in zip(self.dataset.queries, self.dataset.relevant.values(), strict=True)
            ]
        )


def _name_fused(channel: str) -> str:
    return "fused" if channel == LATE else channel.replace("dense-", "fused-")


def _place_of(name: str) -> tuple[int, str]:
    known = (BM25, *INTERACTIONS, "rrf", *map(_name_fused, INTERACTIONS), STRONGER, "fused-stronger")
    return (known.index(name), "") if name in known else (len(known), name)


def _fit(
    candidates: Candidates, sessions: _Sessions, groups: Sequence[Hashable], first: str, second: str
) -> tuple[System, AlphaFit]:
    """(the fused system, in which each conversation has the alpha fitted on the others; the fit)."""
    fused = [ZScore(alpha, first, second)(candidates) for alpha in ALPHAS]
    everything = np.ones(len(candidates.documents), dtype=bool)
    fit = fit_alpha(np.stack([sessions.hits(System(fusion.scores, everything)) for fusion in fused]), groups)
    chosen = np.array([ALPHAS.index(fit.chosen[group]) for group in groups])
    table = np.stack([fusion.scores for fusion in fused])
    return System(table[chosen[candidates.owners], np.arange(table.shape[1])], everything), fit


def _by(labels: Sequence[str]) -> dict[str, Flags]:
    column = np.array(labels, dtype=object)
    return {label: np.asarray(column == label) for label in sorted({*labels} - {""})}


def _break_down(values: Mapping[str, Floats], parts: Mapping[str, Flags]) -> dict[str, dict[str, float]]:
    """``{part: {"n": questions, system: mean}}`` for the parts that have a question."""
    return {
        part: {"n": int(of.sum()), **means({name: column[of] for name, column in values.items()})}
        for part, of in parts.items()
        if of.any()
    }
