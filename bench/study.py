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
from fanrank.engine.evaluate.comparison import differences_of, study_strategies
from fanrank.engine.evaluate.dataset import Dataset
from fanrank.engine.evaluate.encoders import describe_encoder, open_encoder
from fanrank.engine.evaluate.presets import LOADERS, Preset, find_preset
from fanrank.engine.evaluate.protocol import default_depth, engine_of, rank
from fanrank.engine.fuse.alpha import ALPHAS, AlphaFit, fit_alpha
from fanrank.engine.fuse.candidates import Candidates
from fanrank.engine.fuse.rrf import RRF
from fanrank.engine.fuse.zscore import ZScore
from fanrank.engine.hybrid.strategy import BM25, AnyChannel, Dense, Lexical, Strategy
from fanrank.engine.metrics.bootstrap import cluster_bootstrap
from fanrank.engine.metrics.ranking import means, per_query
from fanrank.engine.vectors.interaction import Interaction

STRONGER = "bm25-stronger"
"""The stronger lexical system, over texts with date lines and captions (R42): the default preset's."""
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
LENGTHS: Mapping[str, tuple[float, float]] = {"1-7": (1, 7), "8-15": (8, 15), "16-25": (16, 25), "26+": (26, np.inf)}
"""Ranges of the number of turns in a question's longest gold session (D018)."""
DIFFERENCES = (
    *((LATE, "dense-early"), ("dense-top3", LATE), ("dense-lme10", "dense-lse10"), ("dense-lme10", LATE)),
    *(("rrf", BM25), ("fused", BM25), ("fused", LATE), ("fused", "rrf"), ("fused", "fused-early")),
    *((STRONGER, "fused"), ("fused-stronger", STRONGER), ("fused-stronger", "fused")),
)
"""(first, second) systems whose Hit@1 is compared."""
DETAILED = (BM25, "dense-early", LATE, "rrf", "fused", STRONGER, "fused-stronger")
"""The systems that are broken down by length."""


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
) -> dict[str, Any]:
    """Load and index a dataset and study it: `study_conversations` for LoCoMo, `study_strategies` for documents."""
    chosen = find_preset(preset, kind)
    options: dict[str, Any] = {**chosen.reading, **({"split": "test"} if kind == "beir" else {})}
    dataset = LOADERS[kind](path, **options)
    model = open_encoder(encoder, embeddings)
    engine = engine_of(dataset, chosen, encoder=model)
    if kind == "beir":
        how: dict[str, Any] = {"k": default_depth(dataset), "complete": chosen.complete}
        result = study_strategies(
            {name: rank(engine, dataset, strategy=Strategy.of(name), **how) for name in DOCUMENTS}
        )
    else:
        channels: tuple[AnyChannel, ...] = (Lexical(), *(Dense(how, name=name) for name, how in INTERACTIONS.items()))
        gathered, _ = engine.candidates(dataset.queries, Strategy("study", channels, RRF(), depth=None, complete=True))
        better = LOADERS[kind](path, **{**options, "date": True, "captions": True})
        stronger, _ = engine_of(better, Preset()).candidates(better.queries, Strategy(BM25).deep(complete=True))
        result = study_conversations(dataset, gathered, stronger=stronger)
    about = {"preset": preset, "analyzer": chosen.analyzer, "parameters": {**chosen.scoring(), **options}}
    return {**result, **about, "encoder": describe_encoder(model), "backend": engine.backend.name}


# Sources: D009.
def study_conversations(
    dataset: Dataset, candidates: Candidates, *, stronger: Candidates | None = None, resamples: int = 4_000
) -> dict[str, Any]:
    """The study as one object of plain JSON values.

    `candidates` follow the dataset's queries and hold every session of each question's conversation, by the channels
    ``bm25`` and `INTERACTIONS`. Of `stronger`, whose engine has another text and analyzer, the channel ``bm25`` takes
    the place of BM25 in ``fused-stronger``. The fused systems are ``fused`` (with ``dense-late``, that is max-sim),
    ``fused-early``, and so on. ``differences`` are those of Hit@1; their bootstrap draws conversations, p is one-sided,
    and ``p_holm`` is corrected for their number.
    """
    groups = [dataset.clusters.get(str(query.id), "") for query in dataset.queries]
    sessions = _Sessions(dataset)
    channels = dict(candidates.channels)
    if stronger is not None:
        channels[STRONGER] = stronger.channels[BM25]
    everything = replace(candidates, channels=channels)
    alone = {name: System(channel.scores, channel.scored) for name, channel in channels.items()}
    ranks = RRF()(replace(candidates, channels={name: channels[name] for name in (BM25, LATE)}))
    pairs = {_name_fused(name): (BM25, name) for name in INTERACTIONS}
    if stronger is not None:
        pairs["fused-stronger"] = (STRONGER, LATE)
    fitted = {name: _fit(everything, sessions, groups, *pair) for name, pair in pairs.items()}
    systems = {**alone, "rrf": System(ranks.scores, ranks.kept), **{name: fused for name, (fused, _) in fitted.items()}}
    order = (BM25, *INTERACTIONS, "rrf", *map(_name_fused, INTERACTIONS), STRONGER, "fused-stronger")
    values = {
        name: per_query(sessions.lists(systems[name]), dataset.relevant, METRICS) for name in order if name in systems
    }
    hits = {name: columns["hit@1"] for name, columns in values.items()}
    turns = sessions.longest()
    lengths = {part: (turns >= low) & (turns <= high) for part, (low, high) in LENGTHS.items()}
    return {
        **{"study": "conversations", "dataset": dataset.name, "n": len(dataset.queries), "clusters": len(set(groups))},
        "systems": {name: means(columns) for name, columns in values.items()},
        "differences": differences_of(
            hits, DIFFERENCES, lambda a, b: cluster_bootstrap(a, b, groups, resamples=resamples)
        ),
        "lengths": {
            part: {"n": int(of.sum()), **means({name: hits[name][of] for name in DETAILED if name in hits})}
            for part, of in lengths.items()
            if of.any()
        },
        "alpha": {name: fit.to_dict() for name, (_, fit) in fitted.items()},
    }


class _Sessions:
    """All sessions of each question's conversation. Those of question b stand at [offsets[b], offsets[b + 1])."""

    def __init__(self, dataset: Dataset) -> None:
        members = dataset.members()
        self.dataset = dataset
        self.ids = [members[query.namespace] for query in dataset.queries]
        sizes = np.array([len(ids) for ids in self.ids], dtype=np.int64)
        self.offsets = offsets_of(sizes)
        self.owners = np.repeat(np.arange(len(sizes)), sizes)
        judged = (dataset.relevant[str(query.id)] for query in dataset.queries)
        self.gold = np.array(
            [grades.get(name, 0) > 0 for ids, grades in zip(self.ids, judged, strict=True) for name in ids], dtype=bool
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
        order, bounds = self.order(system), self.offsets.tolist()
        each = zip(self.dataset.queries, self.ids, bounds, bounds[1:], strict=False)
        return {
            str(query.id): [ids[number - start] for number in order[start:end].tolist()]
            for query, ids, start, end in each
        }

    def longest(self) -> Integers:
        """[questions] the number of passages of the longest gold session."""
        passages = {(r.namespace, r.id): len(r.passages or ()) for r in self.dataset.records}
        each = zip(self.dataset.queries, self.dataset.relevant.values(), strict=True)
        return np.array(
            [
                max((passages.get((query.namespace, name), 0) for name, grade in judged.items() if grade), default=0)
                for query, judged in each
            ]
        )


def _name_fused(channel: str) -> str:
    return "fused" if channel == LATE else channel.replace("dense-", "fused-")


def _fit(
    candidates: Candidates, sessions: _Sessions, groups: Sequence[Hashable], first: str, second: str
) -> tuple[System, AlphaFit]:
    """(the fused system, in which each conversation has the alpha fitted on the others; the fit)."""
    table = np.stack([ZScore(alpha, first, second)(candidates).scores for alpha in ALPHAS])
    everything = np.ones(table.shape[1], dtype=bool)
    fit = fit_alpha(np.stack([sessions.hits(System(scores, everything)) for scores in table]), groups)
    chosen = np.array([ALPHAS.index(fit.chosen[group]) for group in groups])
    return System(table[chosen[candidates.owners], np.arange(table.shape[1])], everything), fit
