"""Whatever comes in: a clear named error that leaves the engine as it was, or the right answer."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import borders

import fanrank as fr

BATCH = ["tea", "milk tea", fr.Query("milk", filter={"role": "user"}), fr.Query("tea", namespace="bob")]

LONE = "\ud800"


@pytest.fixture
def engine() -> fr.Engine:
    made = fr.Engine(analyzer="minimal")
    made.add([fr.Record("1", "tea", role="user"), fr.Record("2", "tea milk"), fr.Record("1", "tea", namespace="bob")])
    made.add([fr.Record("3", "milk", role="user", session="s")])
    return made


TABLES = ("index_bytes", "vocabulary_bytes")


def state(made: fr.Engine) -> tuple[Any, ...]:
    """All that a failed call could have changed."""
    hits = made.search(BATCH, 5)
    return (
        list(hits),
        hits.documents.tolist(),
        # Caches grow with every search, and a dictionary keeps its size when it loses entries.
        {name: value for name, value in made.stats().items() if name not in ("cache_bytes", *TABLES)},
        made.namespaces,
        list(made.index.memory.indexer.vocabulary.strings),
        *(list(terms.strings) for terms in (made.index.memory.weight_terms, made.index.memory.entity_terms)),
        {name: list(column.strings) for name, column in made.index.memory.values.items()},
        str(made.explain("milk tea", "2")),
    )


def assert_unharmed(made: fr.Engine, before: tuple[Any, ...]) -> None:
    assert state(made) == before
    # And a later add gives what it gives to an engine that never failed.
    twin = fr.Engine(analyzer="minimal")
    twin.add([fr.Record("1", "tea", role="user"), fr.Record("2", "tea milk"), fr.Record("1", "tea", namespace="bob")])
    twin.add([fr.Record("3", "milk", role="user", session="s")])
    for one in (made, twin):
        one.add([fr.Record("later", "tea coffee", role="tool"), fr.Record("7", "milk", namespace="carol")])
    assert state(made) == state(twin)
    assert made.search(["coffee"])[0][0][0] == "later"


BAD_RECORDS: list[Any] = [
    ({"text": "no id"}, "'id' is missing"),
    ({"id": "9"}, "id '9': 'text' is missing"),
    ({"id": "", "text": "x"}, "'id' must be a non-empty string, not ''"),
    ({"id": None, "text": "x"}, "'id' must be a non-empty string, not None"),
    ({"id": 9, "text": "x"}, "'id' must be a non-empty string, not 9"),
    ({"id": "9", "text": None}, "id '9': 'text' must be a string, not NoneType"),
    ({"id": "9", "text": ["x"]}, "id '9': 'text' must be a string, not list"),
    ({"id": "9", "text": b"x"}, "'text' must be a string, not bytes"),
    *(
        ({"id": "9", "text": "x", name: 5}, f"id '9': '{name}' must be a string, not int")
        for name in ("namespace", "role", "session", "user", "agent", "tool", "type")
    ),
    ({"id": "9", "text": "x", "namespace": None}, "'namespace' must be a string, not NoneType"),
    ({"id": "9", "text": "x", "time": "yesterday"}, "id '9': 'time' must be .* an ISO 8601 date .*, not 'yesterday'"),
    ({"id": "9", "text": "x", "importance": 1.01}, r"'importance' must lie in \[0, 1\], not 1.01"),
    ({"id": "9", "text": "x", "importance": math.nan}, "'importance' must be finite"),
    ({"id": "9", "text": "x", "importance": "high"}, r"'importance' must be a number in \[0, 1\], not 'high'"),
    ({"id": "9", "text": "x", "fields": "x"}, "'fields' must be a mapping"),
    ({"id": "9", "text": "x", "fields": {"predicate": 5}}, "text field 'predicate' must be a string"),
    ({"id": "9", "text": "x", "extra": [1]}, "'extra' must be a mapping"),
    ({"id": "9", "text": "x", "extra": [1], "mood": "glad"}, "'extra' must be a mapping"),
    ({"id": f"9{LONE}", "text": "x"}, "'id' holds a lone surrogate at character 1"),
    ({"id": "9", "text": "x", "namespace": LONE}, "'namespace' holds a lone surrogate at character 0"),
    ({"id": "9", "text": "x", "session": f"ab{LONE}"}, "id '9': 'session' holds a lone surrogate at character 2"),
    ("text", "a record must be a JSON object, not str"),
    (None, "a record must be a JSON object, not NoneType"),
    (["9", "x"], "a record must be a JSON object, not list"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_RECORDS)
def test_bad_records(engine: fr.Engine, bad: Any, message: str) -> None:
    before = state(engine)
    fresh = fr.Record("8", "fresh words", "fresh", role="fresh", weights={"fresh": 1.0}, entities=["fresh"])
    good: list[Any] = [fresh, {"id": "a", "text": "more"}]
    with pytest.raises(fr.errors.RecordError, match=message) as caught:
        engine.add([*good, bad, *good])
    assert str(caught.value).startswith("record 3")
    assert isinstance(caught.value, ValueError)
    assert_unharmed(engine, before)


def test_where_and_id_can_be_read_off_the_error(engine: fr.Engine) -> None:
    with pytest.raises(fr.errors.RecordError) as caught:
        engine.add([{"id": "9", "text": 5}])
    assert (caught.value.where, caught.value.record_id) == ("record 1", "9")
    assert str(caught.value) == "record 1, id '9': 'text' must be a string, not int"


@pytest.mark.parametrize("error", [RuntimeError("the source broke"), KeyboardInterrupt()])
@pytest.mark.parametrize("chunk", [2, 50_000])
def test_a_source_that_breaks(engine: fr.Engine, error: BaseException, chunk: int) -> None:
    before = state(engine)

    def source() -> Iterator[fr.Record]:
        for n in range(5):
            yield fr.Record(f"n{n}", f"fresh{n} tea", role=f"role{n}", weights={f"w{n}": 1.0}, entities=[f"e{n}"])
        raise error

    with borders.shrunken(BUILD_CHUNK=chunk), pytest.raises(type(error)):
        engine.add(source())
    assert_unharmed(engine, before)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "x", "text": "tea"', "not JSON"),
        (b"{'id': 'x'}", "not JSON"),
        (b'{"id": "x", "text": "t\xe9"}', "not UTF-8 at byte 22"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"id": "x", "text": "tea", "time": NaN}', "'time' must be finite seconds .*, not nan"),
        (b'{"id": "x", "text": "tea", "time": 1e999}', "'time' must be finite seconds .*, not inf"),
        (b'{"id": "\\ud800", "text": "tea"}', "lone surrogate"),
        (b'{"id": "x"}', "id 'x': 'text' is missing"),
        (b'"tea"', "a record must be a JSON object, not str"),
    ],
)
def test_a_broken_line_in_a_file(engine: fr.Engine, tmp_path: Path, line: bytes, message: str) -> None:
    before = state(engine)
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"id": "a", "text": "fresh"}\n\n' + line + b'\n{"id": "b", "text": "fresh"}\n')
    with pytest.raises(fr.errors.RecordError, match=message) as caught:
        engine.add(fr.read_records(path))
    assert str(caught.value).startswith("r.jsonl:3")
    assert_unharmed(engine, before)


@pytest.mark.parametrize("make", [lambda folder: folder, lambda folder: folder / "none.jsonl"])
def test_a_file_that_cannot_be_read(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with pytest.raises(fr.errors.StorageError, match="cannot be read"):
        list(fr.read_records(make(tmp_path)))


@pytest.mark.parametrize("analyzer", fr.text.ANALYZERS)
def test_lone_surrogates_in_texts_separate_words(analyzer: str, tmp_path: Path) -> None:
    texts = [f"apple{LONE}banana", f"{LONE}cherry \udfff", LONE, "apple cherry"]
    clean = [text.replace(LONE, " ").replace("\udfff", " ") for text in texts]
    asked = [f"cherry{LONE}", f"{LONE}", "apple banana"]
    rows = []
    for own, batch in ((texts, asked), (clean, ["cherry", "", "apple banana"])):
        made = fr.Engine(analyzer=analyzer, fields={"text": 1.0, "predicate": 1.0})
        made.add([fr.Record(str(n), text, fields={"predicate": text}) for n, text in enumerate(own)])
        made.save(tmp_path / "index")
        loaded = fr.Engine.load(tmp_path / "index")
        rows.append(list(made.search(batch)))
        assert list(loaded.search(batch)) == rows[-1]
    assert rows[0] == rows[1]
    assert [[name for name, _ in row] for row in rows[0]][1] == []
    assert {name for name, _ in rows[0][0]} == {"1", "3"}


def test_empty_documents_and_strange_texts() -> None:
    nothing = ["", " \t\n", "!!!", "\0", "\u200b", "—"]
    words = ["\x1b[31mred", "🙂", "naïve", "Ωmega", "4711", "日本"]
    made = fr.Engine.from_records([fr.Record(str(n), text) for n, text in enumerate([*nothing, *words])])
    hits = made.search([*nothing, *words], 20)
    assert hits.counts.tolist() == [0] * len(nothing) + [1] * len(words)
    assert hits.documents[len(nothing) :, 0].tolist() == list(range(len(nothing), len(nothing) + len(words)))


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ({"text": "tea", "filtr": {}}, "query 0: a query has no 'filtr'"),
        (["a", fr.Query("tea", vector=[1, 2])], "query 1 has a vector, and .* make it with encoder='own:2'"),
        ([5], "query 0 must be a string, a Query, a mapping .* or a sequence of terms, not int"),
        (["tea", None], "query 1 must be .*, not NoneType"),
        ([b"tea"], "query 0 must be .*, not bytes"),
        ([["tea", 5]], "terms must be a sequence of strings"),
        (None, "takes queries: pass a text, a Query or a list"),
    ],
)
def test_batches_that_are_none(engine: fr.Engine, queries: Any, message: str) -> None:
    before = state(engine)
    for ask in (engine.search, lambda given: engine.candidates(given, "bm25")):
        with pytest.raises(fr.errors.QueryError, match=message):
            ask(queries)
    assert_unharmed(engine, before)


BAD_QUERIES: list[tuple[dict[str, Any], str]] = [
    ({"text": 5}, "text must be a string, not int"),
    ({"text": None}, "text must be a string, not NoneType"),
    ({"namespace": 5}, "namespace"),
    ({"id": 5}, "id"),
    ({"terms": "tea"}, "terms must be a sequence of strings"),
    ({"terms": ["tea", None]}, "terms must be a sequence of strings"),
    ({"terms": 5}, "terms must be a sequence"),
    ({"k": -1}, "k must be 0 or more, not -1"),
    ({"k": 1.0}, "k must be an integer, not 1.0"),
    ({"k": True}, "k must be an integer, not True"),
    ({"half_life": 0.0, "now": 1.0}, "'half_life' must be above 0 seconds, not 0.0"),
    ({"half_life": math.inf, "now": 1.0}, "'half_life' must be finite seconds"),
    ({"half_life": 5.0}, "half_life needs its own 'now'"),
    *(({"windows": value}, "'windows' must be 1 or more, or 'auto'") for value in (0, -1, 1.5, "all", True)),
    ({"scope": "session"}, "scope must be a SearchScope, not str"),
    ({"statistics": "all"}, "statistics must be 'namespace' or 'filtered', not 'all'"),
    ({"filter": 5}, "a filter must map columns to values"),
]


@pytest.mark.parametrize(("options", "message"), BAD_QUERIES)
def test_bad_queries(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fr.errors.QueryError, match=message) as caught:
        fr.Query(**{"text": "tea", **options})
    assert isinstance(caught.value, ValueError)


BAD_OPTIONS: list[tuple[str, list[Any], str, str]] = [
    ("k", [-1, 2.0, True, None, "3", np.float64(3)], "QueryError", "k must be"),
    ("threads", [0, -1, 1.5, True, None, "2"], "ParameterError", "threads must be 1 or more"),
    ("execution", ["fast", "", None, ["auto"]], "ParameterError", "unknown execution.*here are: auto, exhaustive"),
    ("strategy", ["bm26", None], "ParameterError", "strategy"),
    ("reranker", ["no reranker"], "ParameterError", "rerank"),
]


@pytest.mark.parametrize(("name", "values", "error", "message"), BAD_OPTIONS)
def test_bad_options_of_a_search(engine: fr.Engine, name: str, values: list[Any], error: str, message: str) -> None:
    before = state(engine)
    for value in values:
        with pytest.raises(getattr(fr.errors, error), match=message):
            engine.search(["tea"], **{name: value})
    for filter in ({"role": 5}, {"mood": "glad"}):
        with pytest.raises(fr.errors.QueryError, match="filter"):
            engine.search(["tea", fr.Query("tea", filter=filter)])
    assert_unharmed(engine, before)


def test_every_named_error_is_also_the_builtin_one() -> None:
    pairs = {
        ValueError: "ParameterError RecordError DuplicateIdError QueryError DatasetError",
        LookupError: "UnknownIdError",
        RuntimeError: "BackendUnavailableError",
        ImportError: "MissingExtraError",
        OSError: "StorageError ForeignIndexError NewerFormatError DamagedIndexError",
    }
    for builtin, names in pairs.items():
        for name in names.split():
            assert issubclass(getattr(fr.errors, name), builtin)


def test_more_slips_that_are_named(engine: fr.Engine) -> None:
    with pytest.raises(fr.errors.QueryError, match="ask for fewer"):
        engine.search([], k=10**30)
    with pytest.raises(fr.errors.UnknownIdError):
        engine.explain("tea", LONE)
    with pytest.raises(fr.errors.UnknownIdError):
        engine.delete([LONE])
    assert engine.delete([LONE, "none"], missing_ok=True) == 0
    with pytest.raises(fr.errors.ParameterError, match="lone surrogates"):
        fr.Engine(fields={"text": 1.0, LONE: 1.0})
    with pytest.raises(fr.errors.ParameterError, match="field's name"):
        fr.Engine(fields={"text": 1.0, 3: 1.0})  # type: ignore[dict-item]
    for records in (5, fr.Record("9", "tea"), {"id": "9", "text": "tea"}, "tea"):
        for write in (engine.add, engine.update):
            with pytest.raises(fr.errors.RecordError, match="pass a list"):
                write(records)  # type: ignore[operator]


@pytest.mark.parametrize(
    "options",
    [{"analyzer": "nope"}, {"columns": 5}, {"k1": "x"}, {"columns": {"a/b": "number"}}, {"encoder": object()}],
)
def test_a_directory_that_options_refuse_is_not_made(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(fr.FanrankError):
        fr.Engine.open(tmp_path / "memory", **options)
    assert not (tmp_path / "memory").exists()


def test_what_is_explained_and_analysed_is_text(engine: fr.Engine) -> None:
    with pytest.raises(fr.errors.QueryError, match="a record's id is text, not 2"):
        engine.explain("tea", 2)  # type: ignore[arg-type]
    for name in fr.text.ANALYZERS:
        with pytest.raises(fr.errors.ParameterError, match="reads text, not None"):
            fr.text.get_analyzer(name)(None)  # type: ignore[arg-type]


class Model:
    """An encoder and a term encoder, without the methods that are named."""

    name = "model"
    version = "1"
    dimension = 2

    def __init__(self, *without: str) -> None:
        for method in {"documents", "queries", "scores"} - {*without}:
            setattr(self, method, self._answer)

    def _answer(self, texts: Sequence[Any], *, progress: bool = False) -> Any:
        return np.ones((len(texts), 2), dtype=np.float32)


WRONG_IDS = [
    *((ids, "takes a batch: pass a list of ids") for ids in ("1", b"1", fr.Record("1", "tea"), {"1": 1}, 5, None)),
    *((["1", wrong], "an id must be a string, not ") for wrong in (1, None, b"1", ("1",))),
]


@pytest.mark.parametrize(("ids", "message"), WRONG_IDS)
def test_fetch_and_delete_take_a_batch_of_strings(engine: fr.Engine, ids: Any, message: str) -> None:
    for call in (engine.fetch, engine.delete, engine.namespace("").fetch):
        with pytest.raises(fr.errors.RecordError, match=message):
            call(ids)
    assert len(engine) == 4
    assert [record and record.id for record in engine.fetch(iter(["1", "x", np.str_("2")]))] == ["1", None, "2"]


def test_an_id_that_is_twice_in_a_batch_is_not_called_taken(engine: fr.Engine) -> None:
    before = state(engine)
    with pytest.raises(fr.errors.DuplicateIdError, match=r"^id 'd': the batch has this id twice"):
        engine.add([fr.Record("d", "x"), fr.Record("d", "y")])
    with pytest.raises(fr.errors.DuplicateIdError, match=r"^namespace 'ana', id 'd': the batch has this id twice"):
        engine.namespace("ana").upsert([fr.Record("d", "x"), fr.Record("d", "y")])
    fresh = fr.Record("8", "fresh", weights={"fresh": 1.0}, entities=["fresh"])
    for chunk in (1, 50_000):
        with (
            borders.shrunken(BUILD_CHUNK=chunk),
            pytest.raises(fr.errors.DuplicateIdError, match=r"^id '1': the id is already taken; .* update"),
        ):
            engine.add([fresh, fr.Record("1", "x"), fr.Record("1", "y")])
    assert_unharmed(engine, before)


@pytest.mark.parametrize("ids", [("q", "q"), ("1", None)], ids=["given twice", "given, and a position"])
def test_two_queries_with_one_id_are_refused_everywhere(engine: fr.Engine, ids: tuple[str, str | None]) -> None:
    hits = engine.search([fr.Query("tea", id=name) for name in ids])
    assert [row[0][0] for row in hits] == ["1", "1"]
    for call in (hits.to_run, lambda: list(hits.to_trec()), hits.to_pandas, hits.to_arrow):
        with pytest.raises((fr.errors.QueryError, fr.errors.MissingExtraError)) as caught:
            call()
        if not isinstance(caught.value, fr.errors.MissingExtraError):
            assert f"two queries of the batch have the id '{ids[0]}'" in str(caught.value)


@pytest.mark.parametrize("method", ["documents", "queries"])
def test_an_encoder_without_a_method_is_refused_when_it_is_given(tmp_path: Path, method: str) -> None:
    for options in ({"encoder": Model(method)}, {"term_encoder": Model(method)}):
        name = next(iter(options))
        with pytest.raises(fr.errors.ParameterError, match=f"^{name}: Model has no method '{method}'; an? "):
            fr.Engine(**options)
        with pytest.raises(fr.errors.ParameterError, match=f"Model has no method '{method}'"):
            fr.Engine.open(tmp_path / name, **options)
    broken = Model()
    broken.documents = "no function"  # type: ignore[attr-defined]
    with pytest.raises(fr.errors.ParameterError, match="Model has no method 'documents'"):
        fr.Engine(encoder=broken)
    fr.Engine(encoder=Model(), term_encoder=Model())


def test_a_reranker_without_its_method_is_refused_when_it_is_given() -> None:
    with pytest.raises(fr.errors.ParameterError, match=r"^reranker: Model has no method 'scores'; a reranker has it"):
        fr.strategies.CheckedReranker(Model("scores"), unchecked=True)
    assert fr.strategies.CheckedReranker(Model(), unchecked=True).name == "model"
    assert fr.strategies.CheckedReranker(lambda pairs: [1.0] * len(pairs), unchecked=True).name.endswith("<lambda>")


def test_a_misspelled_keyword_is_told_what_it_may_mean(engine: fr.Engine, tmp_path: Path) -> None:
    new = tmp_path / "new"
    for call, typo, meant in (
        (partial(fr.Engine.open, new), "readonly", "read_only"),
        (partial(fr.Engine.from_records, []), "colums", "columns"),
        (fr.Engine, "analyser", "analyzer"),
        (fr.Query, "filtr", "filter"),
        (partial(fr.Record, "a", "tea"), "rol", "role"),
        (fr.Neighbours, "windw", "window"),
    ):
        with pytest.raises(TypeError, match=rf"^[EQRN].*\(\) got .* '{typo}'; did you mean '{meant}'\?"):
            call(**{typo: {}})
    assert not new.exists()
    for typo, meant in (("strateg", "strategy"), ("limit", "k"), ("where", "filter"), ("min_scor", "min_score")):
        for search in (engine.search, engine.submit, engine.namespace("").search):
            with pytest.raises(TypeError, match=rf"(search|submit)\(\) got .* '{typo}'; did you mean '{meant}'\?"):
                search(["tea"], **{typo: 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"asearch\(\) got .* 'dedline'; did you mean 'deadline'\?"):
        asyncio.run(engine.asearch(["tea"], dedline=1.0))  # type: ignore[call-arg]
    with pytest.raises(fr.errors.ParameterError, match=r"'minmal'; did you mean 'minimal'\? There are: minimal, "):
        fr.Engine(analyzer="minmal")
    inner = {"name": "x", "channels": [{"kind": "dense", "mod": "exact"}]}
    with pytest.raises(fr.errors.QueryError, match=r"query 0: .* has no 'mod'; did you mean 'mode'\?"):
        engine.search({"text": "tea", "strategy": inner})
    with pytest.raises(fr.errors.QueryError, match="no column 'sesion' to filter on; did you mean 'session'"):
        engine.search("tea", filter={"sesion": "s"})
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'zzz'$"):
        engine.submit(["tea"], zzz=1)  # type: ignore[call-arg]
