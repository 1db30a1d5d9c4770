"""Every record is asked for by what it says itself; plain loops say what must come out."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.memories import KINDS, make_memory
from support.serving import served

import fanrank as fr
from fanrank.engine.cli.main import main
from fanrank.engine.trust import audit as module

WORDS = [f"word{n}" for n in range(12)]


def records(count: int, seed: int = 0) -> list[fr.Record]:
    """Short texts of few words, so that many are alike and some say nothing; every third has a vector."""
    draw = random.Random(seed)
    made = []
    for n in range(count):
        text = " ".join(draw.choices(WORDS, k=draw.choice((0, 1, 2, 3, 9))))
        row = np.array([draw.choice((-1.0, 1.0)) for _ in range(3)]) if n % 3 == 0 else None
        made.append(fr.Record(f"r{n}", text, draw.choice(("", "ana")), role=draw.choice("ab"), embedding=row))
    return made


def expected(memory: fr.Memory, own: list[fr.Record], k: int) -> Counter[tuple[str, bool]]:
    """How many records each question finds, by plain loops over single queries and all texts."""
    counts: Counter[tuple[str, bool]] = Counter()
    holders = Counter(word for one in own for word in {*one.text.split()})
    for one in own:
        # Of one vocabulary of words that no stemmer changes, equal counts are in the alphabet's order.
        rare = sorted({*one.text.split()}, key=lambda word: (holders[word], word))[:8]
        asked = [rare, one.text.split()]
        rows = [
            [hit.id for hit in memory.search([fr.Query(terms=words, namespace=one.namespace)], k)[0]] for words in asked
        ]
        counts["words", any(one.id in row for row in rows)] += 1
        counts["id", memory.get(one.id, namespace=one.namespace) == one] += 1
        if one.embedding is not None:
            query = fr.Query(vector=one.embedding[0], namespace=one.namespace)
            counts["vector", one.id in [hit.id for hit in memory.search([query], k, strategy="dense")[0]]] += 1
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_finds_what_plain_loops_find_and_explains_the_others(kind: str) -> None:
    memory, own = make_memory(kind, encoder=fr.OwnVectors(3), analyzer="minimal"), records(90)
    memory.add(own)
    for k in (1, 3):
        report, wanted = memory.audit(k=k), expected(memory, own, k)
        for by in ("words", "vector", "id"):
            assert report["found"][by] == wanted[by, True]
            assert report["asked"][by] == wanted[by, True] + wanted[by, False]
        assert report["passed"]
        assert report["unexplained"] == 0
        assert sum(report["reasons"].values()) == sum(n for (_, found), n in wanted.items() if not found)
        assert {"twin", "shared", "nothing"} >= {*report["reasons"]} >= ({"twin", "nothing"} if k == 1 else {"nothing"})
    assert (
        memory.audit(namespace="ana")["records"]
        == memory.namespace("ana").audit()["records"]
        == memory.count(namespace="ana")
    )
    role = memory.audit(filter={"role": "a"}, k=90)
    assert role["reasons"]["filtered"] >= sum(one.role == "b" and one.text != "" for one in own)
    assert role["unexplained"] == 0
    memory.close()


@pytest.mark.parametrize("kind", KINDS)
def test_receipts_say_the_rank_at_which_each_record_finds_itself(kind: str) -> None:
    memory = make_memory(kind, encoder=fr.OwnVectors(3))
    first = memory.add([fr.Record("a", "green tea", embedding=[1, 0, 0]), fr.Record("b", "", "ana")], receipts=True)
    assert first == 2
    assert first.receipts[0]["ranks"] == {"id": 1, "words": 1, "vector": 1}
    assert first.receipts[1] == {
        "id": "b",
        "namespace": "ana",
        "ranks": {"id": 1, "words": None},
        "why": {"words": "nothing"},
    }
    later = memory.add([fr.Record("c", "green tea", embedding=[1, 0, 0])], receipts=True)
    assert later.receipts[0]["ranks"] == {"id": 1, "words": 2, "vector": 2}  # the older one stands before it
    assert memory.receipts(["c"], k=1)[0]["why"] == {"words": "twin", "vector": "twin"}
    with served(memory) as url, fr.Client(url) as client:
        sent = client.namespace("ana").add([{"id": "d", "text": "black coffee"}], receipts=True)
        assert sent.receipts[0]["ranks"]["words"] == 1
        assert client.audit() == memory.audit()
        assert client.namespace("ana").audit()["records"] == 2
    with pytest.raises(fr.errors.UnknownIdError):
        memory.receipts(["none"])
    memory.close()


def test_what_the_index_has_lost_is_named_and_the_command_exits_with_1(tmp_path: Path, monkeypatch) -> None:
    engine = fr.Engine.open(tmp_path / "memory")
    engine.add([fr.Record("kept", "green tea"), fr.Record("old", "stale news", expires=time.time() + 1e6)])
    before = engine.index.memory.state
    engine.add([fr.Record("lost", "black coffee")])
    monkeypatch.setattr(module, "ASKED_TOGETHER", 2)
    assert engine.audit()["passed"]
    engine.index.memory.state = before  # the store has the record
    report = engine.audit()
    assert (report["unexplained"], report["passed"], report["records"]) == (2, False, 3)
    assert [(one["id"], one["by"], one["why"]) for one in report["missing"]] == [
        ("lost", "id", "unexplained"),
        ("lost", "words", "unexplained"),
    ]
    engine.close()
    run = CliRunner().invoke(main, ["audit", str(tmp_path / "memory"), "--json", "--k", "1"])
    assert (run.exit_code, json.loads(run.output)["audit"]["passed"]) == (0, True)
    monkeypatch.setattr(
        module.Audit, "_ask_ids", lambda self, found: [one.why.update(id="unexplained") for one in found]
    )
    run = CliRunner().invoke(main, ["audit", str(tmp_path / "memory")])
    assert run.exit_code == 1
    assert "unexplained          3" in run.output
