"""A retrieval experiment: two analyzers over the same records, metrics by question, and whether they differ by chance.

With matplotlib the recall by depth is drawn into recall.svg.

agent: ndcg@10 1.000, recall@5 0.882
minimal: ndcg@10 0.798, recall@5 0.647
agent - minimal, ndcg@10: +0.202 [+0.097, +0.315] of 40 questions, p 0.0001
"""

import importlib.util

import numpy as np

import fanrank as fr

METRICS = ("ndcg@10", "recall@1", "recall@3", "recall@5", "recall@10")
PARTS = ("billing", "login", "search", "export", "import", "backup", "mail", "chat", "quota", "audit")
SAID = {"times out": "timed out", "refuses keys": "a refused key", "fails": "failing", "slows down": "slowed down"}


def made(seed: int) -> tuple[list[fr.Record], list[str], dict[str, dict[str, int]]]:
    """Notes, questions that say the same in other forms of the words, and which notes answer each."""
    draw = np.random.default_rng(seed)
    notes = [(draw.choice(PARTS), draw.choice(list(SAID))) for _ in range(200)]
    records = [fr.Record(f"n{at}", f"{part} {what} since build {at}") for at, (part, what) in enumerate(notes)]
    pairs = sorted(set(notes))
    gold = {
        f"q{number}": {f"n{at}": 1 for at, note in enumerate(notes) if note == pair}
        for number, pair in enumerate(pairs)
    }
    return records, [f"which {part} was {SAID[what]}?" for part, what in pairs], gold


def main() -> None:
    records, questions, gold = made(seed=7)
    found = {}
    for analyzer in ("agent", "minimal"):
        hits = fr.Engine.from_records(records, analyzer=analyzer).search(questions, k=10)
        run = {name: dict(row) for name, row in zip(gold, hits, strict=True)}
        found[analyzer] = fr.evaluation.per_query(run, gold, METRICS)
        print(f"{analyzer}: " + ", ".join(f"{name} {found[analyzer][name].mean():.3f}" for name in METRICS[:4:3]))
    test = fr.evaluation.paired_bootstrap(found["agent"]["ndcg@10"], found["minimal"]["ndcg@10"])
    interval = f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]"
    print(f"agent - minimal, ndcg@10: {interval} of {test.units} questions, p {test.p:.4f}")
    if importlib.util.find_spec("matplotlib"):
        from matplotlib import pyplot

        for analyzer, values in found.items():
            pyplot.plot((1, 3, 5, 10), [values[name].mean() for name in METRICS[1:]], label=analyzer)
        pyplot.legend()
        pyplot.savefig("recall.svg")


if __name__ == "__main__":
    main()
