"""Every record is asked for by what it says itself; plain loops say what must come out."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.memories import KINDS, make_memory
from support.serving import served

import fanrank as fr
from fanrank.engine import reading
from fanrank.engine.cli.main import main
from fanrank.engine.trust import audit as module


def records(count: int) -> list[fr.Record]:
    """Short texts of few words, so that many are alike and some say nothing; every third has a vector."""
    draw, words, made = random.Random(0), [f"word{n}" for n in range(12)], []
    for n in range(count):
        text = " ".join(draw.choices(words, k=draw.choice((0, 1, 2, 3, 9))))
        row = np.array([draw.choice((-1.0, 1.0)) for _ in range(3)]) if n % 3 == 0 else None
        made.append(fr.Record(f"r{n}", text, draw.choice(("", "ana")), role=draw.choice("ab"), embedding=row))
    return made


def expected(memory: fr.Memory, own: list[fr.Record], k: int) -> Counter[str]:
    """What the questions find, and how many are missing for twins, by plain loops over single queries and all texts."""
    counts: Counter[str] = Counter()
    holders = Counter(word for one in own for word in {*one.text.split()})
    words = {(one.namespace, one.id): sorted(one.text.split()) for one in own}
    for one in own:
        rare = sorted({*one.text.split()}, key=lambda word: (holders[word], word))[:2]
        asked = [fr.Query(terms=terms, namespace=one.namespace) for terms in (rare, one.text.split())]
        rows = [[hit.id for hit in memory.search([query], k)[0]] for query in asked]
        counts["words"] += any(one.id in row for row in rows)
        twins = [words[one.namespace, other] == words[one.namespace, one.id] for other in rows[1]]
        counts["twin"] += not any(one.id in row for row in rows) and len(twins) == k and all(twins)
        counts["id"] += memory.get(one.id, namespace=one.namespace) == one
        if one.embedding is not None:
            query = fr.Query(vector=one.embedding[0], namespace=one.namespace)
            found = [hit.id for hit in memory.search([query], k, strategy="dense")[0]]
            counts["vector"] += one.id in found
            counts["twin"] += one.id not in found  # of eight directions, those that are as near are the same
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_finds_what_plain_loops_find_and_explains_the_others(kind: str, monkeypatch) -> None:
    monkeypatch.setattr(reading, "RAREST", 2)
    monkeypatch.setattr(module, "ASKED_TOGETHER", 50)
    memory, own = make_memory(kind, encoder=fr.OwnVectors(3), analyzer="minimal"), records(90)
    memory.add(own)
    for k in (1, 2):
        report, wanted = memory.audit(k=k), expected(memory, own, k)
        assert report["found"] == {by: wanted[by] for by in ("words", "vector", "id")}
        assert report["asked"] == {"words": 90, "vector": 30, "id": 90}
        assert report["passed"]
        assert report["reasons"]["twin"] == wanted["twin"] > 0
        assert sum(report["reasons"].values()) == 210 - sum(report["found"].values())
    namespaced = memory.audit(namespace="ana")["records"]
    assert namespaced == memory.namespace("ana").audit()["records"] == memory.count(namespace="ana")
    report = memory.audit(filter={"role": "a"}, k=90)
    assert report["reasons"]["filtered"] >= sum(one.role == "b" and one.text != "" for one in own)
    assert report["passed"]
    memory.close()


def test_the_rarest_words_are_asked_first(monkeypatch) -> None:
    memory, asked = fr.Engine(analyzer="minimal"), []
    memory.add([fr.Record(f"r{n}", f"common of{n} " + "usual " * (n < 2)) for n in range(3)])
    monkeypatch.setattr(reading, "RAREST", 1)
    search = memory.search
    monkeypatch.setattr(
        memory, "search", lambda queries, *rest, **kw: asked.append(queries) or search(queries, *rest, **kw)
    )
    memory.audit()
    assert [query.terms for query in asked[0]] == [("of0",), ("of1",), ("of2",)]


@pytest.mark.parametrize("kind", KINDS)
def test_receipts_say_the_rank_at_which_each_record_finds_itself(kind: str) -> None:
    memory = make_memory(kind, encoder=fr.OwnVectors(3))
    first = memory.add([fr.Record("a", "green tea", embedding=[1, 0, 0]), fr.Record("b", "", "ana")], receipts=True)
    assert (first, first.receipts[0]["ranks"]) == (2, {"id": 1, "words": 1, "vector": 1})
    assert (first.receipts[1]["namespace"], first.receipts[1]["why"]) == ("ana", {"words": "nothing"})
    later = memory.add([fr.Record("c", "green tea", embedding=[1, 0, 0])], receipts=True)
    assert later.receipts[0]["ranks"] == {"id": 1, "words": 2, "vector": 2}  # the older one stands before it
    assert memory.receipts(["c"], k=1)[0]["why"] == {"words": "twin", "vector": "twin"}
    memory.add([fr.Record("e", "green tea green tea")])  # holds its words, and says something else
    assert memory.receipts(["c"], k=2)[0]["why"]["words"] == "shared"
    with served(memory) as url, fr.Client(url) as client:
        sent = client.namespace("ana").add([{"id": "d", "text": "black coffee"}], receipts=True)
        assert sent.receipts[0]["ranks"]["words"] == 1
        assert client.audit() == memory.audit()
        assert client.namespace("ana").audit()["records"] == 2
    with pytest.raises(fr.errors.UnknownIdError):
        memory.receipts(["none"])
    gone = memory.add([fr.Record("g", "red tea", expires=1.0), fr.Record("h", "blue tea")], receipts=True)
    assert [one["why"] for one in gone.receipts] == [{"id": "gone"}, {}]  # written, and so no error
    memory.close()


def test_what_the_index_has_lost_is_named_and_the_command_exits_with_1(tmp_path: Path, monkeypatch) -> None:
    engine = fr.Engine.open(tmp_path / "memory")
    engine.add([fr.Record("kept", "green tea")])
    before = engine.index.memory.state
    engine.add([fr.Record("lost", "black coffee")])
    engine.index.memory.state = before  # the store has the record
    report = engine.audit()
    assert (report["unexplained"], report["passed"], report["records"]) == (2, False, 2)
    assert [(one["id"], one["by"]) for one in report["missing"]] == [("lost", "id"), ("lost", "words")]
    engine.close()
    command = ["audit", str(tmp_path / "memory"), "--json", "--k", "1"]
    assert CliRunner().invoke(main, command).exit_code == 0
    lose = lambda _, found: [one.why.update(id="unexplained") for one in found]  # noqa: E731
    monkeypatch.setattr(module.Audit, "_ask_ids", lose)
    run = CliRunner().invoke(main, command)
    assert (run.exit_code, json.loads(run.output)["audit"]["unexplained"]) == (1, 2)
