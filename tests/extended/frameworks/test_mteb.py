"""MTEB runs a task of local data with fanrank, and finds what ``fanrank eval`` finds."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import borders
from support.evaluations import Letters

import fanrank as fr

os.environ.setdefault("HF_HUB_OFFLINE", "1")
mteb = pytest.importorskip("mteb", reason="the extra 'mteb' is not installed")
datasets = pytest.importorskip("datasets", reason="the extra 'mteb' is not installed")

from fanrank.engine.metrics.ranking import strictly_descending  # noqa: E402
from fanrank.integrations.mteb import FanrankIndex, FanrankSearch  # noqa: E402

DATA = Path(os.environ.get("FANRANK_DATA", "../shared/data")) / "cranfield"
WORDS = ["tea", "jam", "milk", "bread", "butter", "salt", "rice", "corn", "egg", "fish", "leek", "plum"]


def make_task(split_data: dict[str, Any], **attributes: Any) -> Any:
    """A retrieval task that holds this split, as a class of MTEB's that loads nothing."""
    metadata = mteb.TaskMetadata(
        name="LocalRetrieval", description="documents and questions of a test", reference="https://example.org",
        dataset={"path": "local", "revision": "1"}, type="Retrieval", category="t2t", eval_splits=["test"],
        eval_langs=["eng-Latn"], main_score="ndcg_at_10", date=("2000-01-01", "2000-01-01"), dialect=[], domains=[],
        task_subtypes=[], license="cc-by-4.0", annotations_creators="derived", modalities=["text"],
        sample_creation="found", bibtex_citation="",
    )  # fmt: skip

    class LocalRetrieval(mteb.abstasks.AbsTaskRetrieval):  # type: ignore[misc, name-defined]
        def load_data(self, *args: Any, **kwargs: Any) -> None:
            self.dataset = {"default": {"test": split_data}}
            self.data_loaded = True

    LocalRetrieval.metadata = metadata
    for name, value in attributes.items():
        setattr(LocalRetrieval, name, value)
    return LocalRetrieval()


def small_split(seed: int = 0, **columns: list[Any]) -> dict[str, Any]:
    rng = random.Random(seed)
    documents = [
        {"id": f"d{number}", "title": rng.choice(["", rng.choice(WORDS)]), "text": " ".join(rng.choices(WORDS, k=3))}
        for number in rng.sample(range(1000), 80)
    ]
    queries = [{"id": f"q{number}", "text": " ".join(rng.sample(WORDS, 2))} for number in range(12)]
    for name, values in columns.items():
        for query, value in zip(queries, values, strict=False):
            query[name] = value
    names = [document["id"] for document in documents]
    return {
        "corpus": datasets.Dataset.from_list(documents),
        "queries": datasets.Dataset.from_list(queries),
        "relevant_docs": {query["id"]: dict.fromkeys(rng.sample(names, 4), 1) for query in queries},
        "top_ranked": None,
    }


def ask(model: FanrankSearch, split: dict[str, Any], top_k: int = 100, **options: Any) -> dict[str, dict[str, float]]:
    rest: dict[str, Any] = {"task_metadata": None, "hf_split": "test", "hf_subset": "default", "num_proc": None}
    model.index(split["corpus"], encode_kwargs={"batch_size": 32}, **rest)
    return model.search(split["queries"], top_k=top_k, encode_kwargs={"batch_size": 32}, **rest, **options)


def run_mteb(model: Any, task: Any) -> dict[str, float]:
    found = mteb.evaluate(model, task, cache=None, encode_kwargs={"show_progress_bar": False})
    scores: dict[str, float] = found.task_results[0].scores["test"][0]
    return scores


@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is missing")
def test_mteb_finds_what_fanrank_eval_finds() -> None:
    data = fr.evaluation.load_beir(DATA)
    split = {
        "corpus": datasets.Dataset.from_list([{"id": one.id, "title": "", "text": one.text} for one in data.records]),
        "queries": datasets.Dataset.from_list([{"id": one.id, "text": one.text} for one in data.queries]),
        "relevant_docs": data.relevant,
        "top_ranked": None,
    }
    ours = fr.evaluation.evaluate("beir", DATA, k=1000, latency=0)["metrics"]
    theirs = run_mteb(FanrankSearch(separator=" "), make_task(split))
    for our_name, name in (
        ("ndcg@5", "ndcg_at_5"),
        ("ndcg@10", "ndcg_at_10"),
        ("recall@5", "recall_at_5"),
        ("recall@100", "recall_at_100"),
        ("mrr@10", "mrr_at_10"),
        ("hit@1", "hit_rate_at_1"),
    ):
        assert round(theirs[name], 5) == round(ours[our_name], 5), name  # MTEB rounds most of them


def test_a_batch_is_one_launch_and_equals_the_engine() -> None:
    split = small_split()
    model = FanrankSearch()
    found = ask(model, split, top_k=10)
    assert isinstance(model, mteb.SearchProtocol)
    records = [
        fr.Record(row["id"], f"{row['title']}\n{row['text']}" if row["title"] else row["text"])
        for row in split["corpus"]
    ]
    engine = fr.Engine.from_records(records)
    rows = [engine.search([query["text"]], k=10)[0] for query in split["queries"]]
    assert {query: list(row) for query, row in found.items()} == {
        query["id"]: [hit.id for hit in row] for query, row in zip(split["queries"], rows, strict=True)
    }
    for row, scores in zip(rows, found.values(), strict=True):
        assert list(scores.values()) == strictly_descending([hit.score for hit in row])
    exact = ask(FanrankSearch(keep_order=False), split, top_k=10)
    assert [list(scores.values()) for scores in exact.values()] == [[hit.score for hit in row] for row in rows]


def test_top_ranked_documents_have_their_exact_scores() -> None:
    split = small_split(3)
    model = FanrankSearch(keep_order=False)
    whole = ask(model, split, top_k=80)
    rng = random.Random(5)
    names = split["corpus"]["id"]
    top_ranked = {query: rng.sample(list(names), 30) for query in whole}
    found = ask(model, split, top_k=1000, top_ranked=top_ranked)
    for query, scores in found.items():
        assert scores == {name: whole[query].get(name, 0.0) for name in top_ranked[query]}
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
    # The best hits of all are not among the candidates of every query, so cutting the ten best would lose some.
    cut = {query: dict(list(whole[query].items())[:10]) for query in whole}
    assert any(set(top_ranked[query]) - set(cut[query]) & set(whole[query]) for query in whole)
    # The three best candidates, and no other document.
    short = ask(model, split, top_k=3, top_ranked=top_ranked)
    assert {query: list(row.values()) for query, row in short.items()} == {
        query: list(row.values())[:3] for query, row in found.items()
    }
    # A query without candidates finds nothing; one of them alone is found, where it has no word as well.
    other = next(name for name in names if name not in whole["q0"])
    few = ask(model, split, top_k=5, top_ranked={"q0": [other, other], "q1": []})
    assert few == {query: {other: 0.0} if query == "q0" else {} for query in whole}


def test_many_candidates_take_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    split = small_split(4)
    model = FanrankSearch()
    names = list(split["corpus"]["id"])
    top_ranked = {query: names[number : number + 30] for number, query in enumerate(split["queries"]["id"])}
    once = ask(model, split, top_ranked=top_ranked)
    borders.shrink(monkeypatch, MASK_BYTES=200)
    assert ask(model, split, top_ranked=top_ranked) == once


def test_a_method_with_negative_scores_ranks_candidates_without_a_word_above_them() -> None:
    corpus = datasets.Dataset.from_list(
        [{"id": f"d{number}", "text": "tea" if number else "milk"} for number in range(5)]
    )
    queries = datasets.Dataset.from_list([{"id": "q", "text": "tea"}])
    model = FanrankSearch(method="robertson")
    split = {"corpus": corpus, "queries": queries}
    found = ask(model, split, top_ranked={"q": ["d3", "d0", "d1"]})["q"]
    assert list(found) == ["d0", "d1", "d3"]
    assert found["d0"] == 0.0 > found["d1"] > found["d3"]


def test_instructions_and_conversations() -> None:
    split = small_split(7, instruction=["salt", None] + ["rice"] * 10)
    texts = list(split["queries"]["text"])
    instructed = ask(FanrankSearch(), split)
    plain = ask(FanrankSearch(instructions=False), split)
    assert instructed["q1"] == plain["q1"]
    assert instructed["q0"] != plain["q0"]
    assert instructed["q0"] == ask(FanrankSearch(), {**split, "queries": one_query(f"{texts[0]} salt")})["q0"]
    said = one_query([{"role": "user", "content": "tea"}, {"role": "assistant", "content": "jam"}])
    assert ask(FanrankSearch(), {**split, "queries": said}) == ask(
        FanrankSearch(), {**split, "queries": one_query("user: tea; assistant: jam")}
    )
    said = one_query(["tea", "jam"])
    assert ask(FanrankSearch(), {**split, "queries": said}) == ask(
        FanrankSearch(), {**split, "queries": one_query("tea; jam")}
    )


def one_query(text: Any) -> Any:
    return datasets.Dataset.from_list([{"id": "q0", "text": text}])


def test_what_is_wrong_is_named() -> None:
    split = small_split()
    with pytest.raises(fr.errors.QueryError, match="call index before search"):
        FanrankSearch().search(split["queries"], top_k=3)
    with pytest.raises(fr.errors.QueryError, match="'q3': the candidate 'nobody' is no record"):
        ask(FanrankSearch(), split, top_ranked={"q3": ["nobody"]})
    with pytest.raises(fr.errors.RecordError, match="only id, image"):
        FanrankSearch().index(datasets.Dataset.from_list([{"id": "1", "image": "x"}]))
    model = FanrankSearch()
    model.index(split["corpus"])
    with pytest.raises(fr.errors.QueryError, match="only id, image"):
        model.search(datasets.Dataset.from_list([{"id": "1", "image": "x"}]), top_k=3)
    with pytest.raises(fr.errors.ParameterError, match="precision 'int8'"):
        FanrankSearch().index(split["corpus"], encode_kwargs={"precision": "int8"})
    with pytest.raises(fr.errors.ParameterError, match="organisation/model"):
        FanrankSearch(name="mine")


@pytest.mark.parametrize("strategy", ["dense", "fused", "auto"])
def test_other_strategies_retrieve_and_rerank(strategy: str) -> None:
    split = small_split(8)
    model = FanrankSearch(strategy, encoder=Letters())
    names = list(split["corpus"]["id"])
    found = ask(model, split, top_k=10)
    assert all(len(row) == 10 for row in found.values())
    top_ranked = dict.fromkeys(found, names[:25])
    ranked = ask(model, split, top_ranked=top_ranked)
    assert all(sorted(row) == sorted(names[:25]) for row in ranked.values())
    if strategy == "dense":
        whole = ask(model, split, top_k=80)
        for query, row in whole.items():
            assert list(ranked[query]) == [name for name in row if name in names[:25]]
            assert list(ranked[query].values()) == pytest.approx([row[name] for name in ranked[query]])


class MtebLetters:
    """`Letters` as an encoder of MTEB."""

    mteb_model_meta = mteb.models.ModelMeta.create_empty(
        overwrites={"name": "test/letters", "similarity_fn_name": mteb.models.model_meta.ScoringFunction.COSINE}
    )

    def encode(self, inputs: Any, **kwargs: Any) -> Any:
        return np.concatenate([Letters().queries(batch["text"]) for batch in inputs])

    def similarity(self, one: Any, other: Any) -> Any:
        import torch

        one, other = torch.as_tensor(one), torch.as_tensor(other)
        return torch.nn.functional.normalize(one) @ torch.nn.functional.normalize(other).T

    similarity_pairwise = similarity


def test_an_index_behind_an_encoder_of_mteb() -> None:
    from mteb.models import SearchEncoderWrapper

    model = MtebLetters()
    for top_ranked in (None, {f"q{n}": list(small_split(9)["corpus"]["id"])[n : n + 20] for n in range(12)}):
        plain, ours = (SearchEncoderWrapper(model, index_backend=backend) for backend in (None, FanrankIndex(model)))
        for _ in range(2):  # MTEB clears the index after a search
            found = [ask_encoder(wrapper, small_split(9), top_ranked) for wrapper in (plain, ours)]
            for query, row in found[0].items():
                theirs = sorted(row.values(), reverse=True)
                assert sorted(found[1][query].values(), reverse=True) == pytest.approx(theirs, abs=2e-3)
    index = FanrankIndex(model)
    with pytest.raises(fr.errors.QueryError, match="add_documents before search"):
        index.search(np.ones((1, 26)), 3)
    other = MtebLetters()
    other.mteb_model_meta = mteb.models.ModelMeta.create_empty(overwrites={"name": "a/b"})
    with pytest.raises(fr.errors.ParameterError, match="by cosine"):
        FanrankIndex(other)


def ask_encoder(wrapper: Any, split: dict[str, Any], top_ranked: Any) -> dict[str, dict[str, float]]:
    rest = {
        "task_metadata": make_task(split).metadata,
        "hf_split": "test",
        "hf_subset": "default",
        "encode_kwargs": {"batch_size": 32, "show_progress_bar": False},
        "num_proc": None,
    }
    wrapper.index(split["corpus"], **rest)
    found = wrapper.search(split["queries"], top_k=15, top_ranked=top_ranked, **rest)
    return {query: dict(row) if isinstance(row, dict) else {n: s for s, n in row} for query, row in found.items()}
