"""Every command as text and as JSON, and one line on standard error for whatever goes wrong."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.commands import fails, make_beir, run, run_json, save_index, write

import fanrank as fr
from fanrank.cpu_fallback import search as numpy_search
from fanrank.engine.backends import choose as backend
from fanrank.engine.cli import main as cli
from fanrank.engine.plan.options import EXECUTIONS

COMMANDS = {
    *("demo", "add", "delete", "list", "count", "stats", "search", "export", "copy", "columns"),
    *("backup", "restore", "vacuum", "serve", "keys", "mcp", "hook", "shards"),
    *("eval", "published", "tune", "check", "doctor", "events", "update-where", "audit", "forget", "replay"),
    "distinct",
}


RECORDS = [
    {"id": "fix", "text": "error 4711 was fixed by a restart", "role": "tool", "session": "monday"},
    {"id": "tea", "text": "the user prefers tea over coffee", "role": "user"},
    {"id": "coffee", "text": "coffee machine error: out of tea and coffee", "role": "tool", "session": "tuesday"},
    {"id": "tea", "text": "no tea here", "namespace": "bob"},
]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return write(tmp_path / "records.jsonl", RECORDS)


@pytest.fixture
def index(tmp_path: Path, records: Path) -> Path:
    return save_index(records, tmp_path / "index")


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    return make_beir(tmp_path / "toy")


def test_a_directory_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    rows = [{"id": "a", "text": "tea"}, {"id": "b", "text": "tea milk"}, {"id": "a", "text": "tea", "namespace": "bob"}]
    first = write(tmp_path / "first.jsonl", rows)
    added = run_json("add", path, first, "--analyzer", "minimal", "--k1", "1.5")
    assert (added["path"], added["added"], added["documents"]) == (str(path), 3, 3)
    newer = write(tmp_path / "newer.jsonl", [{"id": "b", "text": "coffee"}, {"id": "c", "text": "tea"}])
    assert "id 'b': the id is already taken" in fails("add", path, newer)
    assert run("add", path, newer, "--update").stdout.startswith("2 records added, 4 there now: ")

    def found(*options: str) -> list[str]:
        return [hit["id"] for hit in run_json("search", path, *options)["queries"][0]["hits"]]

    assert (found("tea"), found("coffee milk"), found("tea", "--namespace", "bob")) == (["a", "c"], ["b"], ["a"])
    assert "no live record with id 'nobody'; nothing was changed" in fails("delete", path, "a", "nobody")
    gone = run_json("delete", path, "a", "nobody", "--missing-ok")
    assert (gone["removed"], gone["documents"], found("tea")) == (1, 3, ["c"])
    assert run("delete", path, "a", "--namespace", "bob").stdout.startswith("1 records deleted, 2 left: ")
    held = run_json("stats", path, "--verify")
    assert (held["records"], held["missing"], held["extra"]) == (2, 0, 0)
    assert (held["documents"], held["namespaces"], held["path"]) == (2, 1, str(path))
    assert "documents            2\n" in run("stats", path).stdout
    # The parameters are the directory's, and no others are taken.
    assert "was made with k1 = 1.5, not 1.2" in fails("add", path, newer, "--k1", "1.2")
    saved = tmp_path / "saved"
    save_index(first, saved)
    assert run_json("stats", saved)["documents"] == 3
    for words in (("delete", saved, "a"), ("delete", tmp_path / "none", "a")):
        assert "no engine's directory" in fails(*words)
    assert "no such directory" in fails("stats", tmp_path / "none")


def test_records_whose_text_is_there_are_left_out(tmp_path: Path) -> None:
    texts = {"a": "one", "b": "one", "c": "two"}
    path, rows = tmp_path / "memory", write(tmp_path / "rows.jsonl", [{"id": i, "text": t} for i, t in texts.items()])
    done = run_json("add", path, rows, "--twins", "skip")
    assert (done["added"], done["twins"], done["documents"]) == (2, 1, 2)
    assert run("add", path, rows, "--twins", "skip").stdout.startswith(
        "0 records added, 3 with the text of another, 2 "
    )
    assert "leave out --upsert and --resume" in fails("add", path, rows, "--twins", "skip", "--upsert")


def test_help_and_version() -> None:
    shown = run("--help").stdout
    assert "Rank a planner's whole fan-out in one launch" in shown
    assert set(cli.main.commands) == COMMANDS
    for command in COMMANDS:
        assert command in shown
        inner = getattr(cli.main.commands[command], "commands", None)
        for arguments in ([command],) if inner is None else ([command, name] for name in inner):
            assert "--json" in run(*arguments, "-h").stdout
    assert fr.__version__ in run("--version").stdout


def test_search(index: Path) -> None:
    engine = fr.Engine.load(index)
    expected = engine.search(["fix for error 4711", "tea"], 10)
    result = run_json("search", index, "fix for error 4711", "tea")
    assert list(result) == ["backend", "strategy", "seconds", "queries"]
    assert result["backend"] == backend.choose().name
    assert result["queries"] == [
        {
            "id": str(number),
            "text": text,
            "hits": [
                {"id": name, "score": score, "rank": rank, "namespace": ""} for rank, (name, score) in enumerate(row, 1)
            ],
        }
        for number, (text, row) in enumerate(zip(["fix for error 4711", "tea"], expected, strict=True))
    ]
    shown = run("search", index, "fix for error 4711", "tea", "-k", "1")
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[0] == ["?", "fix", "for", "error", "4711"]
    assert lines[1] == ["1", f"{expected[0][0][1]:.4f}", "fix"]
    assert len(lines) == 4
    assert shown.stderr.startswith("2 queries in ")
    assert run("search", index, "tea").stderr.startswith("1 query in ")


def test_search_options(index: Path) -> None:
    def found(*arguments: object) -> list[list[str]]:
        return [[hit["id"] for hit in query["hits"]] for query in run_json("search", index, *arguments)["queries"]]

    plain = found("error tea coffee")
    assert {*plain[0]} == {"fix", "tea", "coffee"}
    for execution in EXECUTIONS:
        assert found("error tea coffee", "--execution", execution, "--threads", "2", "--backend", "numpy") == plain
    assert found("error tea coffee", "-k", "0") == [[]]
    assert found("error tea coffee", "--filter", "role=user") == [["tea"]]
    assert {*found("error", "--filter", "session=monday", "--filter", "session=tuesday")[0]} == {"fix", "coffee"}
    assert found("error", "--filter", "session=monday", "--filter", "role=user") == [[]]
    assert found("tea coffee", "--namespace", "bob") == [["tea"]]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["role!=tool"], {"b", "d"}),
        (["time>=20"], {"b", "c"}),
        (["time>20"], {"c"}),
        (["time<=20"], {"a", "b"}),
        (["time<2e1"], {"a"}),
        (["time=20", "time=30"], {"b", "c"}),
        (["time!=20"], {"a", "c", "d"}),
        (["time>10", "time<30"], {"b"}),
        (["time>10", "role=tool", "role=user"], {"b", "c"}),
        (['{"or": [{"session": "x=1"}, {"time": null}]}'], {"a", "d"}),
        (['{"role": ["user", null]}', "time>0"], {"b"}),
        (["session=x=1"], {"a"}),
        (["{}"], {"a", "b", "c", "d"}),
        (["role=nobody"], set()),
    ],
)
def test_search_filters(tmp_path: Path, filters: list[str], expected: set[str]) -> None:
    rows = [
        {"id": "a", "text": "tea", "role": "tool", "session": "x=1", "time": 10},
        {"id": "b", "text": "tea", "role": "user", "time": 20},
        {"id": "c", "text": "tea", "role": "tool", "time": 30},
        {"id": "d", "text": "tea"},
    ]
    run("add", tmp_path / "index", write(tmp_path / "records.jsonl", rows))
    options = [part for text in filters for part in ("--filter", text)]
    assert {hit["id"] for hit in run_json("search", tmp_path / "index", "tea", *options)["queries"][0]["hits"]} == (
        expected
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("role", "--filter takes COLUMN=VALUE"),
        ("role!", "--filter takes COLUMN=VALUE"),
        ("=x", "a filter's column must be a non-empty string"),
        ("time<noon", "'noon' is neither seconds since 1970 nor"),
        ("time=1_000", "'1_000' is neither seconds since 1970 nor"),
        ("time<nan", "must be finite"),
        ("role<5", "'<' 5.0 compares no strings, and 'role' holds strings"),
        ("mood=glad", "Declare it where the index is made (`--column mood:json`), or later, where"),
        ('{"role": ', "not JSON"),
        ("{" + '"not": {' * 100_000, "not JSON"),
        ('{"role": {"~": "x"}}', "unknown operator '~'"),
    ],
)
def test_bad_filters_are_one_line(index: Path, text: str, message: str) -> None:
    assert message in fails("search", index, "tea", "--filter", text)


def test_queries_from_a_file(index: Path, tmp_path: Path) -> None:
    queries = write(
        tmp_path / "queries.jsonl",
        [
            {"_id": "q1", "text": "tea", "metadata": {}},
            {"id": "q2", "text": "error", "k": 1, "filter": {"role": ["tool"]}},
            {"terms": ["tea"], "namespace": "bob", "now": 5.0},
        ],
    )
    result = run_json("search", index, "coffee", "--queries", queries)["queries"]
    assert [query["id"] for query in result] == ["0", "q1", "q2", "3"]
    assert [len(query["hits"]) for query in result] == [2, 2, 1, 1]


def test_search_pages_repeats_and_strategies(index: Path, tmp_path: Path) -> None:
    def ids(*arguments: Any) -> list[list[str]]:
        return [[hit["id"] for hit in row["hits"]] for row in run_json("search", index, *arguments)["queries"]]

    (full,) = ids("error tea coffee")
    assert len(full) == 3
    assert ids("error tea coffee", "--collapse", "role") == [[full[0], "tea"]]
    assert "no column 'colour' to collapse by" in fails("search", index, "tea", "--collapse", "colour")
    queries = write(
        tmp_path / "queries.jsonl",
        [
            {"text": "coffee", "strategy": "decay", "now": 5},
            {"text": "coffee"},
            {"newest": True, "filter": {"role": "tool"}, "k": 1},
        ],
    )
    assert ids("--queries", queries) == [["coffee", "tea"], ["coffee", "tea"], ["coffee"]]
    answered = run_json("search", index, "tea", "--strategy", '{"bob": "bm25", "": "sparse"}', "--namespace", "bob")
    assert answered["strategy"]["kind"] == "by-namespace"
    assert [hit["id"] for hit in answered["queries"][0]["hits"]] == ["tea"]


def test_search_explain(index: Path) -> None:
    result = run_json("search", index, "tea coffee", "nothing here", "--explain")["queries"]
    best = result[0]["hits"][0]
    why = result[0]["explain"]
    assert (why["id"], why["score"]) == (best["id"], best["score"])
    assert sum(term["score"] for term in why["terms"]) == best["score"]
    assert "explain" not in result[1]
    assert "quanta / 2**18" in run("search", index, "tea coffee", "--explain").stdout


def test_a_run_is_written_whole_or_not_at_all(index: Path, tmp_path: Path) -> None:
    hits = fr.Engine.load(index).search([fr.Query("tea coffee"), fr.Query("error")])
    expected = "".join(line + "\n" for line in hits.to_trec())
    assert run("search", index, "tea coffee", "error", "--trec", "-").stdout == expected
    assert expected.count("\n") == 4
    run_file, memory = tmp_path / "run.txt", tmp_path / "memory"
    assert run("search", index, "tea coffee", "error", "--trec", run_file).stdout == ""
    assert run_file.read_text() == expected
    more = [
        {"id": "not fine", "text": "zebra"},
        {"id": "a", "text": "tea"},
        {"id": "a", "text": "tea", "namespace": "x"},
    ]
    run("add", memory, write(tmp_path / "more.jsonl", more))
    queries = tmp_path / "queries.jsonl"
    for rows, message in (
        ([{"text": "zebra"}], "white space"),
        ([{"text": "tea", "namespaces": ["", "x"]}], "two hits with the id 'a'"),
        ([{"id": "q", "text": "tea"}, {"id": "q", "text": "zebra"}], "two queries of the batch have the id 'q'"),
    ):
        write(queries, rows)
        assert message in fails("search", memory, "--queries", queries, "--trec", run_file)
        assert message in fails("search", memory, "--queries", queries, "--trec", tmp_path / "new.txt")
    assert run_file.read_text() == expected
    assert not (tmp_path / "new.txt").exists()
    assert "run.txt" in fails("search", index, "tea", "--trec", tmp_path / "none" / "run.txt")


def test_check_of_a_beir_directory(beir: Path) -> None:
    result = run_json("check", beir, "--limit", "3", "--analyzer", "minimal")
    assert list(result) == ["corpus", "queries", "roads", "differences"]
    assert (result["corpus"], result["queries"], result["differences"]) == ("toy", 3, 0)
    assert len(result["roads"]) >= 8
    assert all(list(path) == ["name", "queries", "differences"] for path in result["roads"])
    first, *backends, last = run("check", beir).stdout.splitlines()
    assert (first, last, len(backends) < 9) == ("toy: 12 records, 4 queries, top 100", "one answer", True)


def test_check_takes_options_of_a_device(records: Path) -> None:
    assert fails("check", records, "--posting-bytes", "4") == (
        "posting_bytes is an option of one backend; name the backend"
    )
    refused = fails("check", records, "--backend", "numpy", "--select", "bitonic")
    assert refused == "backend 'numpy' has no option select; such options are of a device"
    if not any(status.name == "cuda-host" and status.usable for status in backend.statuses()):
        pytest.skip("the CUDA kernels do not run here")
    asked = ("check", records, "--backend", "cuda-host")
    assert "tile_bits must lie in [5, 15], not 4" in fails(*asked, "--tile-bits", "4")


def test_check_exits_1_on_a_difference(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = numpy_search.search_numpy

    def spoiled(*arguments: Any, threads: int = 1, **options: Any) -> Any:
        scores, documents, counts = plain(*arguments, threads=threads, **options)
        return (scores + (documents >= 0) if threads == 2 else scores), documents, counts

    monkeypatch.setattr(numpy_search, "search_numpy", spoiled)
    result = run_json("check", records, code=1)
    assert result["differences"] == 4
    assert {path["name"]: path["differences"] for path in result["roads"] if path["differences"]} == {
        "numpy: batch, 2 threads": 4
    }
    assert "numpy: batch, 2 threads: 4 of 4 queries differ" in run("check", records, code=1).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "made", "bad.jsonl"], "bad.jsonl:2: not JSON: "),
        (["add", "made", "twice.jsonl"], "twice.jsonl:3, id 'a': already the id of twice.jsonl:1; ids must"),
        (["add", "fresh", "none.jsonl"], "none.jsonl: cannot be read: No such file"),
        (["add", ".", "records.jsonl"], "holds other files"),
        (["add", "records.jsonl", "fresh"], "records.jsonl is a file: fanrank add MEMORY records.jsonl"),
        (["search", "records.jsonl", "tea"], "records.jsonl is a file: fanrank search MEMORY [QUERY]..."),
        (["restore", "index", "fresh"], "takes the new memory first: fanrank restore fresh index"),
        (["import", "records.jsonl", "fresh"], "fanrank import is no more; write fanrank add MEMORY FILE --resume"),
        (["add", "fresh", "records.jsonl", "--analyzer", "klingon"], "no analyzer 'klingon'"),
        (["add", "fresh", "records.jsonl", "--k1", "-1"], "k1 must lie in"),
        (["add", "fresh", "records.jsonl", "--field", "predicate"], "--field takes NAME=WEIGHT"),
        (["add", "fresh", "records.jsonl", "--field", "=x"], "--field takes NAME=WEIGHT"),
        (["add", "fresh", "records.jsonl", "--field", "predicate=much"], "--field takes NAME=WEIGHT"),
        (["search", "none", "tea"], "no such directory"),
        (["search", "toy", "tea"], "not a fanrank index"),
        (["search", "index", "tea", "-k", "-1"], "k must be 0 or more, not -1"),
        (["check", "records.jsonl", "-k", "-1"], "k must be 0 or more"),
        (["check", "none"], "cannot be read"),
        (["check", "other.json"], "say --kind"),
        (["check", "unjudged"], "test.tsv: missing"),
        (["search", "lossy", "tea"], "missing; restore the index"),
        (["demo", "bad.jsonl"], "bad.jsonl:2: not JSON"),
    ],
)
@pytest.mark.usefixtures("index", "beir")
def test_errors_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text('{"id": "1", "text": "x"}\n{"id": "2", "text"\n')
    write(Path("twice.jsonl"), [{"id": "a", "text": "x"}, {"id": "b", "text": "x"}, {"id": "a", "text": "y"}])
    Path("other.json").write_text("{}")
    shutil.copytree("toy", "unjudged", ignore=shutil.ignore_patterns("test.tsv"))
    shutil.copytree("index", "lossy", ignore=shutil.ignore_patterns("part_documents.*"))
    assert message in fails(*arguments)
    assert not Path("fresh").exists()


def test_unusable_backends_are_one_line(records: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unusable = backend.BackendStatus("cuda", False, "no driver")
    monkeypatch.setitem(backend._PROBES, "cuda", lambda: unusable)
    expected = "backend 'cuda' (asked for by the caller) cannot serve: no driver"
    assert fails("search", index, "tea", "--backend", "cuda") == expected
    assert fails("check", records, "--backend", "cuda") == expected
    assert fails("demo", records, "--backend", "cuda") == expected
    monkeypatch.setenv("FANRANK_BACKEND", "cuda")
    assert "asked for by FANRANK_BACKEND" in fails("add", "unused", records)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "tea", "k": -1}, "k must be 0 or more"),
        ({"text": "tea", "filter": {"mood": "x"}}, "no column 'mood'"),
        ({"text": "tea", "k": 10**30}, "ask for fewer"),
        ({"text": "tea", "depth": 5}, "queries.jsonl:1: a query has no 'depth'"),
        ({"text": 5}, "queries.jsonl:1: a query's text must be a string"),
        ("tea", "queries.jsonl:1: a query must be a JSON object"),
        ({"text": "tea", "strategy": "nonsense"}, "query 0: unknown strategy 'nonsense'"),
    ],
)
def test_bad_queries_are_one_line(index: Path, tmp_path: Path, row: Any, message: str) -> None:
    queries = write(tmp_path / "queries.jsonl", [row])
    assert message in fails("search", index, "--queries", queries, "--trec", "-")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_query_with_a_lone_surrogate(index: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    queries = write(tmp_path / "queries.jsonl", [{"text": "coffee \ud800"}])
    assert "coffee" in run("search", index, "--queries", queries, *options).stdout
