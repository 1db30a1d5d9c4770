"""mem0's `Memory` over fanrank, with a model of words in place of an embedder and a script in place of an LLM."""

import json
import math
import os
import random
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

# Read when mem0 is imported: no telemetry, and nothing written to the home directory.
os.environ["MEM0_TELEMETRY"] = "False"
os.environ.setdefault("MEM0_DIR", tempfile.mkdtemp())
pytest.importorskip("mem0", reason="mem0 is not installed: pip install 'fanrank[mem0]'")

from mem0 import Memory
from mem0.memory import main as mem0_main
from mem0.utils.factory import EmbedderFactory, LlmFactory, VectorStoreFactory
from mem0.utils.scoring import get_bm25_params, normalize_bm25
from mem0.vector_stores.base import VectorStoreBase
from support.evaluations import count_searches

import fanrank as fr
from fanrank.integrations.mem0 import KEYWORD_WEIGHT, FanrankConfig, FanrankVectorStore, register

DIMENSION = 64


class Words:
    """An embedder: each word adds one to a place of the vector, which its checksum chooses."""

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        vector = [0.01] * DIMENSION
        for word in text.lower().replace(".", " ").split():
            vector[zlib.crc32(word.encode()) % DIMENSION] += 1.0
        return vector

    def embed_batch(self, texts: Sequence[str], memory_action: str = "add") -> list[list[float]]:
        return [self.embed(text) for text in texts]


class Facts:
    """An LLM: each line of the last message is a fact."""

    def generate_response(self, messages: Sequence[dict[str, str]], **_: Any) -> str:
        said = messages[-1]["content"].rsplit("user: ", 1)[-1]
        return json.dumps({"memory": [{"text": line} for line in said.splitlines() if line.startswith("Fact")]})


def names_in(text: str) -> list[tuple[str, str]]:
    return [("PERSON", word) for word in text.replace(".", " ").split() if word in ("Ana", "Bo", "Lisbon")]


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbedderFactory, "create", classmethod(lambda *_: Words()))
    monkeypatch.setattr(LlmFactory, "create", classmethod(lambda *_: Facts()))
    monkeypatch.setattr(mem0_main, "extract_entities", names_in)
    monkeypatch.setattr(mem0_main, "extract_entities_batch", lambda texts: [names_in(text) for text in texts])
    register()


def config(path: Path | None, **more: Any) -> dict[str, Any]:
    options = {"path": None if path is None else str(path), "embedding_model_dims": DIMENSION, **more}
    return {"vector_store": {"provider": "fanrank", "config": options}, "history_db_path": ":memory:"}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    made = Memory.from_config(config(tmp_path / "memory"))
    yield made
    made.close()
    made.vector_store.close()


def store_of(**options: Any) -> FanrankVectorStore:
    return FanrankVectorStore(embedding_model_dims=4, **options)


def filled(**options: Any) -> FanrankVectorStore:
    store = store_of(**options)
    store.insert(
        [[1, 0, 0, 0], [0, 1, 0, 0], [0.6, 0.8, 0, 0], [-1, 0, 0, 0]],
        [
            {"data": "Ana prefers tea", "user_id": "ana", "rank": 1},
            {"data": "Bo drinks coffee", "user_id": "bo", "rank": 2},
            {"data": "tea and coffee", "user_id": "ana", "rank": 3, "text_lemmatized": "tea coffee brew"},
            {"data": "lunch", "user_id": "bo"},
        ],
        ["a", "b", "c", "d"],
    )
    return store


def test_every_verb_of_the_base_is_there() -> None:
    own = {name for name in vars(VectorStoreBase) if not name.startswith("_")}
    assert own <= {*vars(FanrankVectorStore)}, "a verb is inherited, and the base's search_batch is a loop"


def test_a_search_gives_cosines_in_the_unit_interval() -> None:
    found = filled().search("", [1, 0, 0, 0], top_k=10)
    assert [memo.id for memo in found] == ["a", "c", "b", "d"]
    assert found[0].score == 1.0
    assert found[1].score == pytest.approx(0.6, abs=1e-3)
    assert found[2].score == found[3].score == 0.0, "an opposite vector is not below 0"
    assert found[0].payload == {"data": "Ana prefers tea", "user_id": "ana", "rank": 1}


def test_no_cosine_exceeds_one() -> None:
    store = store_of()
    rng = random.Random(7)
    vectors = [[rng.gauss(0, 1) for _ in range(4)] for _ in range(300)]
    store.insert(vectors)
    scores = [memo.score for row in store.search_batch([""] * 300, vectors, 3) for memo in row]
    assert all(score is not None and 0.0 <= score <= 1.0 for score in scores)
    raw = store.engine.search([fr.Query(vector=v, namespace="mem0") for v in vectors], 1, strategy="dense").scores
    assert raw.max() > 1.0, "half precision exceeds 1 somewhere, or the test shows nothing"


def test_a_batch_of_vectors_is_one_launch_and_what_a_loop_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled()
    vectors = [[1, 0, 0, 0], [0, 1, 0, 0], [0.3, 0.3, 0.3, 0]]
    texts = ["tea", "coffee", "lunch brew"]
    one_by_one = [store.search(text, vector, 3) for text, vector in zip(texts, vectors, strict=True)]
    calls = count_searches(monkeypatch)
    assert store.search_batch(texts, vectors, 3) == one_by_one
    assert calls == [3]
    assert store.search_batch([], []) == []


def test_keyword_scores_are_bm25_in_the_scale_of_mem0() -> None:
    store, plain = filled(), filled(keyword_scale=1.0)
    bm25 = [hit.score for hit in plain.engine.search([fr.Query("tea coffee", namespace="mem0")])[0]]
    assert [memo.score for memo in plain.keyword_search("tea coffee")] == bm25
    assert [memo.score for memo in store.keyword_search("tea coffee")] == [score * KEYWORD_WEIGHT for score in bm25]
    assert [memo.id for memo in store.keyword_search("brew")] == ["c"], "the lemmas are searched where mem0 stored them"
    assert store.keyword_search("nothing of this") == []


@pytest.mark.parametrize("profile", ["literature", "general", "chat", "documents"])
def test_the_scale_is_that_of_the_store_that_mem0s_sigmoid_was_set_for(profile: str) -> None:
    # k1 1.2, b .75 and an average length of 256 words, whatever the memories are: a word that occurs once in ten.
    theirs = 2.2 / (1 + 1.2 * (1 - 0.75 + 0.75 * 10 / 256))
    assert theirs == pytest.approx(KEYWORD_WEIGHT, abs=0.005)
    store = store_of(engine_options={"profile": profile, "analyzer": "minimal"})
    plain = store_of(engine=store.engine, keyword_scale=1.0)
    texts = [" ".join(f"w{10 * row + place}" for place in range(10)) for row in range(50)]
    store.insert([[1, 0, 0, 0]] * 50, [{"data": text} for text in texts])
    idf = math.log(1 + (50 - 1 + 0.5) / 1.5)
    (found,), (unscaled,) = store.keyword_search("w5"), plain.keyword_search("w5")
    assert found.score == pytest.approx(theirs * idf, rel=0.01)
    assert found.score == pytest.approx(unscaled.score * store.keyword_scale)
    midpoint, steepness = get_bm25_params("", lemmatized="w5")
    assert normalize_bm25(found.score, midpoint, steepness) > 0.5 > normalize_bm25(idf / 2.2, midpoint, steepness)


def test_the_scale_of_an_engine_with_fields_is_that_of_the_text() -> None:
    engine = fr.Engine(encoder=fr.OwnVectors(4), fields={"text": 1, "title": 3}, method="lucene", k1=1.2, b=0.75)
    assert store_of(engine=engine).keyword_scale == pytest.approx(KEYWORD_WEIGHT)


def test_statistics_may_be_those_of_a_user_alone() -> None:
    store, own = filled(), filled(statistics="filtered")
    assert own.keyword_search("tea", filters={"user_id": "ana"}) != store.keyword_search(
        "tea", filters={"user_id": "ana"}
    )
    alone = store_of()
    alone.insert(
        [[1, 0, 0, 0]] * 2,
        [{"data": "Ana prefers tea"}, {"data": "tea and coffee", "text_lemmatized": "tea coffee brew"}],
        ["a", "c"],
    )
    scores = [memo.score for memo in own.keyword_search("tea", filters={"user_id": "ana"})]
    assert scores == [memo.score for memo in alone.keyword_search("tea")]


def test_a_strategy_may_read_the_words_too() -> None:
    store = filled(strategy="rrf")
    asked = fr.Query("lunch", vector=[1, 0, 0, 0], namespace="mem0")
    expected = list(store.engine.search([asked], 4, strategy="rrf")[0])
    assert [(memo.id, memo.score) for memo in store.search("lunch", [1, 0, 0, 0], 4)] == expected
    assert expected[0][0] == "d", "the farthest vector, and the one with the word"


def test_an_update_of_the_payload_keeps_the_vector() -> None:
    store = filled()
    vector = store.engine.get("a", namespace="mem0").embedding.tobytes()
    store.update("a", payload={"data": "Ana now prefers water", "user_id": "ana"})
    assert store.engine.get("a", namespace="mem0").embedding.tobytes() == vector
    assert [memo.id for memo in store.keyword_search("water")] == ["a"]
    assert "a" not in [memo.id for memo in store.keyword_search("tea")]
    store.update("a", payload={"data": "Ana now prefers water", "user_id": "bo"})
    assert store.engine.get("a", namespace="mem0").embedding.tobytes() == vector
    store.update("a", vector=[0, 0, 0, 1])
    assert store.search("", [0, 0, 0, 1], 1)[0].payload == {"data": "Ana now prefers water", "user_id": "bo"}
    store.update("a", [0, 0, 1, 0], {"data": "new"})
    assert store.search("", [0, 0, 1, 0], 1)[0].payload == {"data": "new"}


def test_an_update_of_the_payload_loses_no_vector_that_another_thread_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled()
    wanted = fr.Record("a", "", embedding=[0, 0, 1, 0]).embedding.tobytes()
    get, rewrite = store.engine.get, store.engine.rewrite

    def between(call: Any) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options) if call == get else None
            monkeypatch.undo()
            store.update("a", vector=[0, 0, 1, 0])
            return call(*arguments, **options) if call == rewrite else result

        return called

    monkeypatch.setattr(store.engine, "get", between(get))
    monkeypatch.setattr(store.engine, "rewrite", between(rewrite))
    store.update("a", payload={"data": "Ana now prefers water"})
    kept = store.engine.get("a", namespace="mem0")
    assert (kept.text, kept.embedding.tobytes()) == ("Ana now prefers water", wanted)


def test_ids_are_made_replaced_and_deleted() -> None:
    store = filled()
    store.insert([[0, 0, 1, 0]], [{"data": "again"}], ["a"])
    assert store.col_info()["count"] == 4
    assert store.get("a").payload == {"data": "again"}  # type: ignore[union-attr]
    store.insert([[0, 0, 1, 0], [0, 0, 1, 0]])
    assert store.col_info() == {"name": "mem0", "count": 6, "dimension": 4, "distance": "cosine"}
    store.delete("a")
    store.delete("a")
    assert store.get("a") is None


def test_a_list_is_newest_first_inside_a_list() -> None:
    store = filled()
    assert [memo.id for memo in store.list()[0]] == ["d", "c", "b", "a"]
    assert [memo.id for memo in store.list(top_k=2)[0]] == ["d", "c"]
    assert store_of().list() == [[]]


def test_collections_share_a_directory_and_nothing_else(tmp_path: Path) -> None:
    one = filled(path=tmp_path / "m")
    two = store_of(path=tmp_path / "m", collection_name="other")
    assert one.engine is two.engine
    two.insert([[1, 0, 0, 0]], [{"data": "tea"}], ["a"])
    assert [memo.id for memo in two.keyword_search("tea")] == ["a"]
    assert one.list_cols() == two.list_cols() == ["mem0", "other"]
    one.delete_col()
    assert one.list() == [[]]
    assert len(two.list()[0]) == 1
    one.create_col("other", 4, "cosine")
    assert len(one.list()[0]) == 1
    one.reset()
    assert two.list() == [[]]
    two.close()


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: store_of().insert([[1, 0, 0, 0]], [], ["a"]), fr.errors.ParameterError, "one each"),
        (lambda: store_of().search_batch(["a"], []), fr.errors.ParameterError, "each query has one vector"),
        (lambda: store_of().create_col("x", 4, "euclid"), ValueError, "cosine"),
        (lambda: store_of().create_col("x", 5), fr.errors.ModelMismatchError, "length 4"),
        (lambda: store_of(engine=fr.Engine()), fr.errors.ModelMismatchError, r"no vectors.*OwnVectors\(4\)"),
        (lambda: store_of(engine=fr.Engine(encoder="own:8")), fr.errors.ModelMismatchError, "vectors of length 8"),
        (lambda: store_of(engine=fr.Engine(encoder="own:4").namespace("x")), fr.errors.ParameterError, "namespace"),
        (lambda: store_of(engine=fr.Engine(encoder="own:4"), path="p"), fr.errors.ParameterError, "not both"),
        (lambda: store_of(keyword_scale=0), fr.errors.ParameterError, "keyword_scale"),
        (lambda: store_of(collection_name=""), fr.errors.ParameterError, "collection_name"),
        (lambda: store_of().update("nobody", payload={"data": "x"}), fr.errors.UnknownIdError, "nobody"),
    ],
)
def test_errors_say_what_is_wrong(act: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        act()


def test_a_directory_is_opened_once_and_as_it_was_made(tmp_path: Path) -> None:
    opened = store_of(path=tmp_path / "m")
    with pytest.raises(fr.errors.ParameterError, match="other engine_options"):
        store_of(path=tmp_path / "m", engine_options={"analyzer": "minimal"})
    with pytest.raises(fr.errors.ModelMismatchError):
        FanrankVectorStore(path=tmp_path / "m", embedding_model_dims=5)
    opened.engine.close()
    again = store_of(path=tmp_path / "m")
    assert not again.engine.closed
    again.close()


def test_the_provider_is_known_to_mem0() -> None:
    register()
    made = VectorStoreFactory.create("fanrank", FanrankConfig(embedding_model_dims=4))
    assert isinstance(made, FanrankVectorStore)
    with pytest.raises(ValueError, match="colection"):
        Memory.from_config(config(None, colection_name="x"))


def test_a_memory_adds_searches_updates_deletes_and_tells_its_history(memory: Memory) -> None:
    added = memory.add("Fact Ana prefers tea\nFact Bo lives in Lisbon", user_id="u1")["results"]
    assert [one["memory"] for one in added] == ["Fact Ana prefers tea", "Fact Bo lives in Lisbon"]
    found = memory.search("who prefers tea", filters={"user_id": "u1"}, explain=True)["results"]
    assert found[0]["memory"] == "Fact Ana prefers tea"
    details = found[0]["score_details"]
    assert details["bm25_score"] > 0.0, "the keyword search takes part"
    assert 0.1 <= details["semantic_score"] <= 1.0
    first = added[0]["id"]
    memory.update(first, "Fact Ana prefers water")
    assert memory.get(first)["memory"] == "Fact Ana prefers water"
    assert [one["event"] for one in memory.history(first)] == ["ADD", "UPDATE"]
    assert memory.search("water", filters={"user_id": "u1"})["results"][0]["id"] == first
    memory.delete(first)
    assert memory.get(first) is None
    assert [one["event"] for one in memory.history(first)] == ["ADD", "UPDATE", "DELETE"]
    assert [one["id"] for one in memory.get_all(filters={"user_id": "u1"})["results"]] == [added[1]["id"]]


def test_filters_read_the_metadata_alone(memory: Memory) -> None:
    """Operators are compared in tests/records/test_dialects.py."""
    for n, (city, session) in enumerate([("Rome", "s1"), ("Oslo", "s2"), ("rome west", "s1"), ("Bern", "s3")]):
        memory.add(f"tea {n}", user_id="u", metadata={"n": n, "city": city, "session": session}, infer=False)
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"session": "s1"}, [0, 2]),
        ({"city": {"ne": "Oslo"}}, [0, 2, 3]),
        ({"n": {"gte": 1, "lt": 3}}, [1, 2]),
        ({"city": {"icontains": "ROME"}}, [0, 2]),
        ({"city": "*"}, [0, 1, 2, 3]),
        ({"OR": [{"city": "Oslo"}, {"n": 3}]}, [1, 3]),
        ({"NOT": [{"city": {"in": ["Oslo", "Bern"]}}]}, [0, 2]),
    ]
    for spec, numbers in cases:
        found = memory.search("tea", filters={"user_id": "u", **spec}, threshold=0.0)["results"]
        assert sorted(one["memory"] for one in found) == [f"tea {n}" for n in numbers], spec
        words = memory.vector_store.keyword_search("tea", filters={"user_id": "u", **spec})
        assert sorted(memo.payload["data"] for memo in words) == [f"tea {n}" for n in numbers], spec
    with pytest.raises(ValueError, match="near"):
        memory.vector_store.search("tea", Words().embed("tea"), filters={"n": {"near": 3}})
