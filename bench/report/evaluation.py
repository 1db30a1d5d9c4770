"""The report's sections on published nDCG, on recency, and on the parts of a search."""

from __future__ import annotations

from collections.abc import Mapping

from . import sources
from .format import NONE, number, sentence, table
from .quality import quality_rows, score
from .rows import Fields, Recorded, choose_newest, machine, stamp


def published_ndcg(recorded: Recorded) -> str:
    """The source's nDCG@10 on BEIR beside ours, where a set was measured: with the default analyzer and the best."""
    measured: dict[str, dict[str, Fields]] = {}
    for (dataset, preset, analyzer), row in quality_rows(recorded).items():
        if preset == "default":
            measured.setdefault(dataset, {})[analyzer] = row
    body = [
        [name, f"{pyserini:.4f}", f"{agentir:.4f}", *_ours(measured.get(name.lower(), {}))]
        for name, (pyserini, agentir) in sources.NDCG.items()
    ]
    head = ["data set", "Pyserini", "AgentIR", "here", "here, best analyzer", "Recall@100"]
    return (
        "nDCG@10 as the source prints it (A111) and as measured here. Pyserini stems and drops 33 stop words; sets "
        f"without a figure here were not at hand:\n\n{table(head, body)}"
    )


def _ours(rows: Mapping[str, Fields]) -> list[str]:
    if not rows:
        return ["", "", ""]
    analyzer, best = max(rows.items(), key=lambda item: item[1]["metrics"]["ndcg@10"])
    first = rows.get("nltk", best)["metrics"]
    return [score(first["ndcg@10"]), f"{score(best['metrics']['ndcg@10'])} ({analyzer})", score(first["recall@100"])]


def recency(recorded: Recorded) -> list[str]:
    """The section on recency: how recent gold records are, and what the bonus gives."""
    rows = choose_newest(recorded.of("recency"), "part", "dataset")
    if not rows:
        return [f"{NONE}: `make recency`."]
    encoders = ", ".join(dict.fromkeys(row["encoder"]["name"] for row in rows.values()))
    parts = [
        f"{sentence(stamp(rows.values()))}; vectors of turns by {encoders}. The source's medians (A067): places .20 to "
        ".27, ages 3 to 21 days. Its grid (A066) is on 344 questions of LongMemEval; the largest set here is LoCoMo, "
        "whose questions are taken as asked when the last session began."
    ]
    body = [
        [dataset, name, f"{of['n']:,}", f"{of['median_rank']:.2f}", f"{of['median_age_days']:.1f}"]
        for (part, dataset), row in rows.items()
        if part == "age"
        for name, of in row["types"].items()
    ]
    parts.append(
        "Where gold stands between the newest record (0) and the oldest (1):\n\n"
        + table(["data set", "type", "questions", "median place", "median age, days"], body)
    )
    for (part, dataset), row in rows.items():
        if part == "grid":
            taus = sorted({of["tau_days"] for of in row["rows"]})
            cells = {(of["alpha"], of["tau_days"]): score(of["recall@10"]) for of in row["rows"]}
            alphas = sorted({alpha for alpha, _ in cells})
            lines = [[f"{alpha:g}", *(cells[alpha, tau] for tau in taus)] for alpha in alphas]
            parts.append(
                f"Recall@10 of `agent_rrf`, {dataset}, {row['n']:,} questions of recent types; `rrf` "
                f"{score(row['rrf'])}:\n\n{table(['alpha', *(f'tau {tau:g} days' for tau in taus)], lines)}"
            )
        if part == "ranks":
            head = [f"k {of['k']}" for of in row["rows"]]
            parts.append(
                f"Recall@5 of `rrf`, {dataset}, {row['n']:,} questions (A070: it moves by .003 at most):\n\n"
                + table(head, [[score(of["recall@5"]) for of in row["rows"]]])
            )
    return parts


def ablation(recorded: Recorded) -> list[str]:
    """The section on the parts of a search."""
    rows = choose_newest(recorded.of("ablation"), "dataset", "variant")
    if not rows:
        return [f"{NONE}: `make ablation`."]
    body = [
        [
            *(dataset, variant),
            *(number(row[column]) for column in ("batch_ms", "batch_ms_low", "batch_ms_high")),
            number(row["alone_ms"]) if "alone_ms" in row else "",
            {True: "yes", False: "NO", None: ""}[row.get("verified")],
        ]
        for (dataset, variant), row in rows.items()
    ]
    head = ["data set", "variant", "batch, ms a query", "least", "most", "alone, ms", "bit for bit"]
    scalar, simd, pruned, threads = sources.ABLATION_MS[sources.BEIR.index("SciFact")]
    return [
        f"{sentence(stamp(rows.values()))}; {machine(rows.values())}. k 100, medians of rounds in which the variants "
        f"take turns. AgentIR on SciFact (A113): {scalar:g} ms with one scalar thread, {simd:g} with SIMD, {pruned:g} "
        f"with MaxScore, {threads:g} with 8 threads.",
        table(head, body),
    ]
