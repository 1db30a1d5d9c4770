"""`fanrank search`: what it shows of a hit, policies, and records that borrow from their neighbours."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.commands import fails, run, run_json, save_index, write

import fanrank as fr
from fanrank.engine.cli import output
from fanrank.engine.cli import search as command
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.route.cascade import Cascade
from fanrank.engine.route.policy import MENU, POLICIES, save, strategy_of

LONG = "tea " + "word " * 60
RECORDS: list[dict[str, Any]] = [
    {"id": "a", "text": "tea\nand\tjam \x1b[31m", "time": "2026-01-02T03:04:05Z", "role": "user", "payload": {"x": 1}},
    {"id": "b", "text": LONG},
    {"id": "c", "text": "tea", "namespace": "acme", "project": "p"},
]


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    run("add", tmp_path / "memory", write(tmp_path / "records.jsonl", RECORDS))
    return tmp_path / "memory"


def lines_of(*arguments: Any) -> list[str]:
    return run("search", *arguments).stdout.splitlines()


def test_a_line_has_namespace_time_and_text(memory: Path) -> None:
    first, best, long = lines_of(memory, "tea")
    assert first == "? tea"
    assert best.startswith("   1  ")
    # No character of a text can begin another line or steer the terminal.
    assert best.endswith("  a  2026-01-02T03:04:05Z  tea and jam [31m")
    assert long.endswith(f"  b  {LONG.strip()}")
    _, other = lines_of(memory, "tea", "--namespace", "acme")
    assert other.endswith("  c  acme  tea")


def test_a_line_is_cut_to_the_terminal(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lines_of(memory, "tea")[1]
    for width in (20, 200):
        monkeypatch.setattr(command, "terminal_width", lambda width=width: width)
        _, best, long = lines_of(memory, "tea")
        assert (len(long), long[-1]) == (width, "…")
        assert best == (whole if width == 200 else whole[:19] + "…")


@pytest.mark.parametrize(
    ("line", "width", "shown"),
    [
        ("tea", None, "tea"),
        ("tea", 3, "tea"),
        ("teas", 3, "te…"),
        ("", 1, ""),
        ("ab", 1, "…"),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("日本語", 3, "日…"),
        ("日本語", 2, "…"),
    ],
)
def test_wide_characters_take_two_columns(line: str, width: int | None, shown: str) -> None:
    assert output.cut_to(line, width) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "1970-01-01T00:00:00Z"),
        (1.9, "1970-01-01T00:00:01Z"),
        (-1.0, "1969-12-31T23:59:59Z"),
        (1e12, "1e+12"),
        (-1e12, "-1e+12"),
    ],
)
def test_a_time_that_no_calendar_has_is_a_number(seconds: float, shown: str) -> None:
    assert output.shown_time(seconds) == shown


def test_json_has_all_of_it(memory: Path) -> None:
    best, long = run_json("search", memory, "tea")["queries"][0]["hits"]
    assert best.pop("score") > long["score"]
    assert best == {
        "id": "a",
        "rank": 1,
        "namespace": "",
        "text": RECORDS[0]["text"],
        "time": 1767323045.0,
        "metadata": {"role": "user"},
        "payload": {"x": 1},
    }
    assert (long["text"], long["time"], long["metadata"], long["payload"]) == (LONG, None, {}, None)
    (other,) = run_json("search", memory, "tea", "--namespace", "acme")["queries"][0]["hits"]
    assert (other["namespace"], other["metadata"]) == ("acme", {"project": "p"})


def test_a_query_without_hits_says_why(memory: Path, tmp_path: Path) -> None:
    assert lines_of(memory, "the", "zebra") == [
        "? the",
        "      no hits: no word of the query is searchable: the analyzer left none",
        "? zebra",
        "      no hits: no record holds a word of the query",
    ]
    stop, unknown, found = run_json("search", memory, "the", "zebra", "tea")["queries"]
    assert stop["note"] == "no word of the query is searchable: the analyzer left none"
    assert unknown["note"] == "no record holds a word of the query"
    assert "note" not in found
    assert (stop["hits"], unknown["hits"]) == ([], [])


def test_a_saved_index_shows_ids_alone(tmp_path: Path) -> None:
    save_index(write(tmp_path / "records.jsonl", RECORDS), tmp_path / "index")
    _, *lines = lines_of(tmp_path / "index", "tea")
    assert [line.split()[2:] for line in lines] == [["a"], ["b"]]
    assert {*run_json("search", tmp_path / "index", "tea")["queries"][0]["hits"][0]} == {
        "id",
        "score",
        "rank",
        "namespace",
    }


def test_a_policy_of_a_file_decides_each_query(tmp_path: Path) -> None:
    path, words = tmp_path / "policy.json", ("tea", "error", "river", "deploy")
    rows = [
        {"id": word, "text": f"{word} {word} {words[n - 1]}", "weights": {word: 2.0}} for n, word in enumerate(words)
    ]
    save_index(write(tmp_path / "records.jsonl", rows), tmp_path / "index", analyzer="minimal")
    asked = [{"text": f"{word} {words[n - 2]}", "weights": {word: 1.0}} for n, word in enumerate(words)]
    asked += [{"text": word, "weights": {words[n - 2]: 1.0}} for n, word in enumerate(words)]
    save(path, Cascade(0.2, escalate=fr.Strategy.of("sparse")), {})
    found = run_json("search", tmp_path / "index", "--queries", write(tmp_path / "q.jsonl", asked), "--policy", path)
    assert found["strategy"]["kind"] == "cascade"
    assert {one["decision"]["escalated"] for one in found["queries"]} == {True, False}
    engine = fr.Engine.load(tmp_path / "index")
    for one, row in zip(found["queries"], asked, strict=True):
        query = fr.Query(row["text"], weights=row["weights"])
        own = engine.search([query], strategy=one["decision"]["strategy"])
        assert [(hit["id"], hit["score"]) for hit in one["hits"]] == own[0]
    shown = run("search", tmp_path / "index", "tea", "--policy", path).stdout.splitlines()[0]
    assert re.fullmatch(r"\? tea  \(bm25; confidence \d+\.\d+.* threshold 0\.2; \d+\.\d\d ms\)", shown)
    save(tmp_path / "one.json", fr.strategies.STRATEGIES["bm25"], {})
    plain = run_json("search", tmp_path / "index", "tea", "--policy", tmp_path / "one.json")["queries"][0]
    assert "decision" not in plain
    assert plain["hits"] == run_json("search", tmp_path / "index", "tea")["queries"][0]["hits"]
    both = run("search", tmp_path / "index", "tea", "--policy", path, "--strategy", "bm25", code=2)
    assert "--strategy or --policy" in both.stderr
    assert "is not a policy file" in fails("search", tmp_path / "index", "tea", "--policy", tmp_path / "q.jsonl")
    assert "cannot be read" in fails("search", tmp_path / "index", "tea", "--policy", tmp_path / "none.json")


TURNS = ["Where did the puppy go?", "To Lisbon.", "With Ana.", "How nice for all."]


@pytest.fixture
def session(tmp_path: Path) -> Path:
    rows = [{"id": f"t{n}", "text": text, "session": "s"} for n, text in enumerate(TURNS)]
    run("add", tmp_path / "session", write(tmp_path / "records.jsonl", rows))
    return tmp_path / "session"


def scores(*arguments: object) -> dict[str, float]:
    return {hit["id"]: hit["score"] for hit in run_json("search", *arguments)["queries"][0]["hits"]}


def test_search_lets_records_borrow(session: Path, tmp_path: Path) -> None:
    plain = scores(session, "puppy")
    assert set(plain) == {"t0"}
    first = plain["t0"]
    quarter = {"t0": first, "t1": first / 4, "t2": first / 4}
    assert scores(session, "puppy", "--neighbours", 2) == quarter
    assert scores(session, "puppy", "--neighbours", 2, "--neighbour-weight", ".25") == quarter
    one_each = ("--neighbour-weight", ".5", "--neighbour-weight", ".125")
    assert scores(session, "puppy", "--neighbours", 2, *one_each) == {"t0": first, "t1": first / 2, "t2": first / 8}
    assert scores(session, "puppy", "--neighbours", 0) == plain
    # A query of a file brings its own.
    asked = write(tmp_path / "q.jsonl", [{"text": "puppy", "neighbours": {"window": 2, "weight": [0.5, 0.125]}}])
    assert scores(session, "--queries", asked, "--neighbours", 1) == {"t0": first, "t1": first / 2, "t2": first / 8}
    explained = run_json("search", session, "puppy", "--neighbours", 1, "--explain")["queries"][0]["explain"]
    assert [share["id"] for share in explained["neighbours"]] == ["t1"]
    # The option goes before what the strategy says.
    strategy = {"name": "near", "channels": [{"kind": "lexical", "neighbours": {"window": 1, "weight": 0.5}}]}
    given = ("--strategy", json.dumps(strategy))
    assert scores(session, "puppy", *given) == {"t0": first, "t1": first / 2}
    assert scores(session, "puppy", *given, "--neighbours", 0) == plain


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--neighbour-weight", ".5"], "--neighbour-weight needs a number of neighbours: give --neighbours"),
        (["--neighbours", "9"], "neighbours: the window must lie in [0, 8], not 9"),
        (["--neighbours", "2", "--neighbour-weight", "2"], "neighbours: a weight must lie in (1/128, 1], not 2.0"),
        (
            ["--neighbours", "3", "--neighbour-weight", ".5", "--neighbour-weight", ".2"],
            "neighbours: 2 weights for a window of 3",
        ),
        (["--neighbours", "1", "--strategy", "rm3"], "rm3 does not let records borrow from their neighbours"),
    ],
)
def test_what_cannot_be_is_one_line(session: Path, arguments: list[Any], said: str) -> None:
    assert fails("search", session, "puppy", *arguments).startswith(said)


def test_a_search_is_auto_where_a_query_brings_a_vector(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "vectors", encoder=fr.OwnVectors(2)) as engine:
        engine.add([fr.Record("1", "tea", embedding=[1, 0]), fr.Record("2", "tea cup", embedding=[0, 1])])
    queries = write(tmp_path / "queries.jsonl", [{"text": "tea", "vector": [0, 1]}, {"text": "cup"}])
    found = run_json("search", tmp_path / "vectors", "--queries", queries)
    assert found["strategy"] == POLICIES["auto"].to_dict()
    assert [row["decision"]["strategy"] for row in found["queries"]] == ["recall", "bm25"]
    assert found["queries"][0]["hits"][0]["id"] == "1"
    plain = run_json("search", tmp_path / "vectors", "tea")
    assert plain["strategy"]["name"] == "bm25"
    assert "decision" not in plain["queries"][0]


@pytest.mark.parametrize("command", ["search", "eval"])
def test_the_menu_is_short_and_names_what_somebody_should_pick(command: str) -> None:
    assert run(command, "--list-strategies").stdout.splitlines() == [str(one) for one in MENU.values()]
    assert len(MENU) <= 12
    for order in (["--list-strategies", "--json"], ["--json", "--list-strategies"]):
        listed = json.loads(run(command, *order).stdout)
        assert {name: strategy_of(one) for name, one in listed.items()} == MENU
    assert {*fr.published.PUBLISHED} == {*NAMED, *POLICIES} - {*MENU}
    assert strategy_of("agent_rrf") is fr.published.PUBLISHED["agent_rrf"]
