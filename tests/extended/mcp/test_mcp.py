"""The tools that agents call, through the official client: what they answer, refuse, cut and never show."""

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from support.mcp_client import ask, connected, refused, running
from support.memories import KINDS, make_memory

import fanrank as fr
from fanrank.engine.offered import TOOL, offered_at
from fanrank.engine.serve.writers import Writers
from fanrank.server.app import Admit, make_app
from fanrank.server.mcp import LIMITS, TEXT_BUDGET, Settings, make_mcp
from fanrank.server.mcp_answers import CUT, Found, cut_texts
from fanrank.server.mcp_run import make_part

WAIT = 300
KEYS = "io.modelcontextprotocol"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RECORDS: list[dict[str, Any]] = [
    {"id": "a", "text": "Ana drinks tea", "namespace": "users/ana", "time": 10, "payload": {"from": "chat"}},
    {"id": "b", "text": "Bo drinks tea and secret coffee", "namespace": "users/bo", "time": 20},
    {"id": "c", "text": "tea is a plant", "time": 30, "role": "tool"},
    {"id": "d/1 é", "text": "green tea", "time": 40, "role": "user"},
]


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> fr.Engine:
    engine = make_memory(request.param, columns={"project": "category"})
    engine.add(RECORDS)
    return engine


def local(engine: fr.Engine, **settings: Any) -> Client:
    """A client in the same process, as over the pipe of the process that began the server."""
    return Client(make_mcp(engine, Settings(**settings), local=True))


@asynccontextmanager
async def serving(engine: fr.Engine, admit: Admit | None = None, **settings: Any) -> AsyncIterator[str]:
    app = make_app(engine, admit=admit, local=admit is None, parts=[make_part(engine, Settings(**settings))])
    async with running(app) as url:
        yield url


async def test_a_batch_is_answered_as_the_engine_answers_it(engine: fr.Engine) -> None:
    async with local(engine) as client:
        found = await ask(client, "search_memory", queries=["tea plant", "green", "nothing of this"], k=2)
    expected = engine.search(["tea plant", "green", "nothing of this"], 2, texts=True)
    for answer, row, note in zip(found["answers"], expected.to_dicts(), expected.notes, strict=True):
        assert [(hit["id"], hit["score"], hit["text"]) for hit in answer["hits"]] == [
            (hit["id"], hit["score"], hit["text"]) for hit in row
        ]
        assert answer.get("note") == note
    assert "cut" not in found


async def test_all_queries_of_a_call_are_one_launch(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    asearch = engine.asearch

    async def counted(queries: Any, *arguments: Any, **keywords: Any) -> Any:
        calls.append(len(queries))
        return await asearch(queries, *arguments, **keywords)

    monkeypatch.setattr(engine, "asearch", counted)
    async with local(engine) as client:
        await ask(client, "search_memory", queries=["tea"] * 20)
    assert calls == [20]


async def test_a_search_is_narrowed_by_time_filter_and_namespace(engine: fr.Engine) -> None:
    async def ids(client: Client, **arguments: Any) -> list[str]:
        found = await ask(client, "search_memory", queries=["tea"], **arguments)
        return [hit["id"] for hit in found["answers"][0]["hits"]]

    async with local(engine) as client:
        assert await ids(client, since="1970-01-01T00:00:35Z") == ["d/1 é"]
        assert await ids(client, until="35") == ["c"]
        assert await ids(client, filter={"role": "tool"}) == ["c"]
        assert await ids(client, unit="exchange") == await ids(client)
        assert await ids(client, namespace="users/bo") == ["b"]
        one = await ask(client, "search_memory", queries=["tea"], namespace="users/ana", payload=True)
        assert one["answers"][0]["hits"][0]["payload"] == {"from": "chat"}


async def test_records_are_remembered_once_replaced_when_asked_and_forgotten(engine: fr.Engine) -> None:
    async with local(engine) as client:
        given = {"tool": "web", "agent": "scout", "metadata": {"project": "x"}}
        same = [{"text": "Ana moved to Lisbon", **given}, {"text": "Ana moved to Lisbon"}]
        first = await ask(client, "remember", records=same)
        assert first["written"] == 1
        assert len(set(first["ids"])) == 1
        assert (await ask(client, "remember", records=same))["written"] == 0
        record = engine.get(first["ids"][0])
        assert getattr(record, "time", None) is not None
        assert "already" in await refused(client, "remember", records=[{"id": "c", "text": "other"}])
        assert (await ask(client, "remember", records=[{"id": "c", "text": "other"}], replace=True))["written"] == 1
        accepted = {"tool": "web", "agent": "scout", "project": "x"}
        found = await ask(client, "search_memory", queries=["Lisbon"], filter=accepted)
        assert [hit["id"] for hit in found["answers"][0]["hits"]] == first["ids"][:1]
        gone = await ask(client, "forget", ids=["c", "c", "nobody"])
        assert (gone["deleted"], gone["unknown"]) == (1, 1)
        assert (await ask(client, "forget", ids=["c"]))["deleted"] == 0


async def test_a_tool_says_which_records_had_the_text_and_leaves_it_out_where_asked(engine: fr.Engine) -> None:
    async with local(engine) as client:
        await ask(client, "remember", records=[{"id": "t1", "text": "Ana moved to Porto"}])
        again = [{"id": "t2", "text": "Ana moved to Porto"}, {"id": "t3", "text": "Ana likes tea"}]
        answer = await ask(client, "remember", records=again, twins="skip")
        assert (answer["written"], answer["twins"]) == (1, [["t1"], []])
        assert engine.get("t2") is None


async def test_recent_records_come_newest_first(engine: fr.Engine) -> None:
    async with local(engine) as client:
        assert [one["id"] for one in (await ask(client, "recent", n=5))["records"]] == ["d/1 é", "c"]
        assert [one["id"] for one in (await ask(client, "recent", filter={"role": "tool"}))["records"]] == ["c"]


async def test_a_score_is_explained_and_adds_up(engine: fr.Engine) -> None:
    async with local(engine) as client:
        parts = (await ask(client, "explain", query="tea plant", id="c"))["explanation"]
        assert sum(term["quanta"] for term in parts["terms"]) / 2**18 == parts["score"]
        assert parts["score"] == engine.search(["tea plant"], 1)[0][0].score
        assert "nobody" in await refused(client, "explain", query="tea", id="nobody")


async def test_a_record_is_read_by_its_address(engine: fr.Engine) -> None:
    async def read(client: Client, uri: str) -> dict[str, Any]:
        (content,) = (await client.read_resource(uri)).contents
        return dict(json.loads(content.text))  # type: ignore[union-attr]

    async with local(engine) as client:
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "memory://{namespace}/{id}"
        assert (await read(client, "memory:///c"))["text"] == "tea is a plant"
        assert (await read(client, "memory:///d%2F1%20%C3%A9"))["text"] == "green tea"
        assert (await read(client, "memory://users%2Fana/a"))["payload"] == {"from": "chat"}
        for uri in ("memory:///nobody", "memory://users%2Fana/..%2F..%2Fetc", "memory://users/ana/a", "file:///etc"):
            with pytest.raises(MCPError):
                await read(client, uri)


async def test_tools_say_what_they_do_and_a_reader_has_none_that_write(engine: fr.Engine) -> None:
    async with local(engine) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    reads = {"search_memory", "recent", "explain", "distinct", "audit"}
    assert tools.keys() == reads | {"remember", "forget", "update_where", "delete_where"}
    for name, tool in tools.items():
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is (name in reads)
        assert name in reads or (tool.annotations.destructive_hint and tool.annotations.idempotent_hint)
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema is not None
    async with local(engine, read_only=True) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == reads
        assert "there is no tool" in await refused(client, "forget", ids=["c"])
    assert engine.get("c") is not None


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("search_memory", {}, "queries: Field required"),
        ("search_memory", {"queries": "tea"}, "queries: Input should be a valid list"),
        ("search_memory", {"queries": [1, None, {}]}, "queries[1]"),
        ("search_memory", {"queries": ["x"] * 33}, "may have 32 queries"),
        ("search_memory", {"queries": [1] * 10_000}, "more"),
        ("search_memory", {"queries": ["x" * 10_001]}, "queries[0].text"),
        ("search_memory", {"queries": ["x"], "k": 0}, "k: "),
        ("search_memory", {"queries": ["x"], "k": 101}, "k may be 100, not 101"),
        ("search_memory", {"queries": ["x"], "k": "many"}, "k: "),
        ("search_memory", {"queries": ["x"], "namespaces": ["users/bo"]}, "namespaces: Extra inputs"),
        ("search_memory", {"queries": ["x"], "filter": {"nope": 1}}, "nope"),
        ("search_memory", {"queries": ["x"], "since": "yesterdayish"}, "since"),
        ("search_memory", {"queries": ["x"], "strategy": "nope"}, "nope"),
        ("recent", {"n": 101}, "n: "),
        ("remember", {"records": [{"id": "x"}]}, "records[0].text"),
        ("remember", {"records": [{"text": "x", "namespace": "users/bo"}]}, "records[0].namespace"),
        ("remember", {"records": [{"text": "x", "metadata": {"namespace": "users/bo"}}]}, "may not hold 'namespace'"),
        ("remember", {"records": [{"text": "x", "time": "soon"}]}, "records[0]"),
        ("remember", {"records": [{"text": "x"}] * 1_001}, "1,000 records"),
        ("remember", {"records": [{"id": "n", "text": "x"}, {"id": "n", "text": "y"}]}, "'n'"),
        ("forget", {"ids": [str(n) for n in range(1_001)]}, "1,000 records"),
        ("forget", {"ids": [["c"]]}, "ids[0]"),
        ("remember", {"records": [{"id": "c", "text": "x"}]}, "pass replace: true"),
        ("nothing", {}, "there is no tool 'nothing'"),
        ("search_memory", {"queries": ["x"], "filter": {"or": [{"a": n} for n in range(2_000)]}}, "filter"),
        ("search_memory", {"queries": ["x"], "strategy": {"name": "x", "channels": []}}, "strategy"),
        ("remember", {"records": [{"id": "i" * 2_000, "text": "x"}]}, "id may have 1,024 characters"),
    ],
)
async def test_a_mistake_is_named_and_nothing_is_written(
    engine: fr.Engine, tool: str, arguments: dict[str, Any], says: str
) -> None:
    async with local(engine) as client:
        assert says in await refused(client, tool, **arguments)
    assert sum(engine.count(namespace=name) for name in engine.namespaces) == len(RECORDS)


async def test_a_failure_of_the_server_shows_nothing_of_it(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("secret of the server")

    monkeypatch.setattr(engine, "asearch", broken)
    async with local(engine) as client:
        assert await refused(client, "search_memory", queries=["x"]) == (
            "the server failed on this request; its log says why"
        )


async def test_the_same_text_of_several_calls_at_once_is_kept_once(
    engine: fr.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls have looked whether the text is there before the first one writes it."""
    together, looks, fetch = threading.Barrier(4), itertools.count(), engine.fetch

    def fetch_together(*arguments: Any, **keywords: Any) -> Any:
        found = fetch(*arguments, **keywords)
        if next(looks) < 4:
            together.wait(WAIT)
        return found

    monkeypatch.setattr(engine, "fetch", fetch_together)
    async with local(engine) as client:
        records = [{"text": "the same text"}]
        answers = await asyncio.gather(*(ask(client, "remember", records=records) for _ in range(4)))
    assert sorted(answer["written"] for answer in answers) == [0, 0, 0, 1]
    assert len({answer["ids"][0] for answer in answers}) == 1


async def test_a_fixed_namespace_cannot_be_left(engine: fr.Engine) -> None:
    async with local(engine, namespace="users/ana") as client:
        for tool in (await client.list_tools()).tools:
            assert "namespace" not in tool.input_schema["properties"]
        found = await ask(client, "search_memory", queries=["tea drinks coffee"])
        assert [hit["id"] for hit in found["answers"][0]["hits"]] == ["a"]
        for other in ("users/bo", "users", "users/ana/../bo", "users/ana/"):
            assert "one namespace" in await refused(client, "search_memory", queries=["tea"], namespace=other)
            assert "one namespace" in await refused(client, "forget", ids=["b"], namespace=other)
        with pytest.raises(MCPError):
            await client.read_resource("memory://users%2Fbo/b")
        with pytest.raises(MCPError):
            await client.read_resource("memory:///c")
        await ask(client, "remember", records=[{"id": "n", "text": "new"}])
        assert (await ask(client, "forget", ids=["b", "c"]))["deleted"] == 0
    assert engine.get("n", namespace="users/ana") is not None
    # Text that reads as JSON null is a name, and not the default.
    async with local(engine) as client:
        found = await ask(client, "search_memory", queries=["tea"], namespace="null")
        assert (found["namespace"], found["answers"][0]["hits"]) == ("null", [])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_two_clients_at_once_over_http(engine: fr.Engine, mode: str) -> None:
    async with serving(engine) as url, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(url, mode=mode)) for _ in range(2)]

        async def work(client: Client, own: str) -> None:
            for turn in range(5):
                word = f"{own}word{turn}"
                await ask(client, "remember", records=[{"id": word, "text": word}], namespace=own)
                found = await ask(client, "search_memory", queries=[word, "tea"], namespace=own)
                assert [[hit["id"] for hit in row["hits"]] for row in found["answers"]] == [[word], []]

        await asyncio.gather(*(work(client, f"n{place}") for place, client in enumerate(clients)))


async def test_a_slow_write_holds_up_no_search_and_a_cancelled_one_is_whole(
    engine: fr.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    carry_out, alone = Writers._carry_out, Writers.alone

    def held(work: Callable[[], Any]) -> Any:
        began.set()
        assert go_on.wait(WAIT)
        return work()

    # Shards write alone.
    monkeypatch.setattr(Writers, "_carry_out", lambda *own: held(lambda: carry_out(*own)))
    monkeypatch.setattr(Writers, "alone", lambda writers, work: alone(writers, lambda: held(work)))
    async with serving(engine) as url, connected(url) as client, connected(url) as other:
        records = [{"id": "n1", "text": "slow one"}, {"id": "n2", "text": "slow two"}]
        write = asyncio.create_task(ask(client, "remember", records=records))
        try:
            assert await asyncio.to_thread(began.wait, WAIT)
            found = await ask(other, "search_memory", queries=["green"])
            assert [hit["id"] for hit in found["answers"][0]["hits"]] == ["d/1 é"]
            assert not write.done()
            write.cancel()
            with pytest.raises(asyncio.CancelledError):
                await write
            await ask(client, "search_memory", queries=["green"])  # the connection goes on
        finally:
            go_on.set()
        while engine.count() < 4:
            await asyncio.sleep(0.01)
        assert (await ask(client, "search_memory", queries=["slow"]))["answers"][0]["hits"][1]["id"] == "n2"


async def test_a_cancelled_search_ends_alone(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = asyncio.Event(), asyncio.Event()
    asearch = engine.asearch

    async def held(queries: Any, *arguments: Any, **keywords: Any) -> Any:
        if queries[0].text == "wait":
            began.set()
            try:
                await asyncio.sleep(WAIT)
            finally:
                ended.set()
        return await asearch(queries, *arguments, **keywords)

    monkeypatch.setattr(engine, "asearch", held)
    async with serving(engine) as url, connected(url) as client:
        search = asyncio.create_task(client.call_tool("search_memory", {"queries": ["wait"]}))
        await began.wait()
        search.cancel()
        await asyncio.wait_for(ended.wait(), WAIT / 2)
        assert (await ask(client, "search_memory", queries=["green"]))["answers"][0]["hits"]


async def test_metadata_is_cut_to_the_budget_and_the_answer_says_so(engine: fr.Engine) -> None:
    def records(**metadata: Any) -> list[Found]:
        return [Found(id=str(n), text="x", metadata=dict(metadata)) for n in range(3)]

    small = records(role="tool")
    assert cut_texts(small, 100) is None
    mixed = records(role="tool", note="y" * 1_000)
    assert "3 long values of metadata are left out" in str(cut_texts(mixed, 100))
    assert [record.metadata for record in mixed] == [{"role": "tool"}] * 3
    many = records(**{f"key{n}": n for n in range(1_000)})
    assert "the metadata is left out" in str(cut_texts(many, 100))
    assert [record.metadata for record in many] == [None] * 3
    engine.add([{"id": "large", "text": "large one", "note": "y" * 100_000}])
    async with local(engine) as client:
        found = await ask(client, "search_memory", queries=["large one"] * 32)
        assert len(json.dumps(found)) < 2 * TEXT_BUDGET
        assert "metadata" in found["cut"]
        # Many short hits are bounded by their number.
        assert "1,000 hits" in await refused(client, "search_memory", queries=["tea"] * 32, k=100)


async def test_texts_are_cut_to_one_length_and_the_answer_says_so(engine: fr.Engine) -> None:
    records = [Found(id=str(n), text="x" * size) for n, size in enumerate((10, 500, 900))]
    word = cut_texts(records, 410)
    assert [len(record.text.removesuffix(CUT)) for record in records] == [10, 200, 200]
    assert word is not None
    assert word.startswith("2 texts end after 200 characters")
    assert cut_texts([Found(id="a", text="short")], 5) is None
    large = [Found(id="a", text="short", payload={"x": "y" * 100})]
    assert "1 payloads are left out" in str(cut_texts(large, 50))
    assert large[0].payload is None
    async with local(engine, text_budget=8) as client:
        found = await ask(client, "search_memory", queries=["tea"])
    assert "memory://" in found["cut"]
    assert sum(len(hit["text"].removesuffix(CUT)) for hit in found["answers"][0]["hits"]) <= 8


async def test_values_are_kept_as_they_were_given(engine: fr.Engine) -> None:
    given = {"number": 7, "large": 2**60 + 1, "yes": True, "half": 0.5, "word": "x"}
    async with local(engine) as client:
        answer = await ask(client, "remember", records=[{"text": "values", "metadata": given}])
    record = engine.get(answer["ids"][0])
    assert record is not None
    assert json.dumps(dict(record.extra), sort_keys=True) == json.dumps(given, sort_keys=True)


async def test_a_time_is_a_number_or_a_date_and_a_year_is_no_number(engine: fr.Engine) -> None:
    async with local(engine) as client:
        for since in (35, 35.0, "35", "1970-01-01T00:00:35Z"):
            found = await ask(client, "search_memory", queries=["tea"], since=since)
            assert [hit["id"] for hit in found["answers"][0]["hits"]] == ["d/1 é"]
        for until in ("2026", "202603", "20260301"):
            answer = await client.call_tool("search_memory", {"queries": ["tea"], "until": until})
            # Read as a date, or refused. As seconds it would lie in January 1970.
            assert answer.is_error or len(answer.structured_content["answers"][0]["hits"]) == 2  # type: ignore[index]


async def test_the_schemas_tell_the_limits_and_descriptions_are_plain(engine: fr.Engine) -> None:
    async with local(engine) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    properties = {name: tool.input_schema["properties"] for name, tool in tools.items()}
    assert properties["search_memory"]["queries"]["maxItems"] == LIMITS.queries
    assert properties["search_memory"]["k"]["maximum"] == properties["recent"]["n"]["maximum"] == LIMITS.k
    assert properties["remember"]["records"]["maxItems"] == LIMITS.records
    assert properties["forget"]["ids"]["maxItems"] == LIMITS.ids
    for tool in tools.values():
        assert "    " not in (tool.description or "")


async def test_the_protocol_of_2026_07_28_is_spoken(engine: fr.Engine) -> None:
    """Each request carries its version, discovery takes the place of a handshake, and tools have one order."""
    version = "2026-07-28"

    async def post(method: str, version: str = version, said: str = "", **parameters: Any) -> tuple[int, Any]:
        told = {f"{KEYS}/protocolVersion": version, f"{KEYS}/clientCapabilities": {}, "traceparent": TRACE}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**parameters, "_meta": told}}
        headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": version}
        headers |= {"mcp-method": method, **({"mcp-name": said} if said else {})}
        async with httpx2.AsyncClient(trust_env=False) as http:
            answer = await http.post(url, json=message, headers=headers)
        assert "mcp-session-id" not in answer.headers
        return answer.status_code, answer.json()

    async with serving(engine) as url:
        found = (await post("server/discover"))[1]["result"]
        assert found["supportedVersions"] == [version]
        assert found["capabilities"]["tools"] == {"listChanged": False}
        assert found["_meta"][f"{KEYS}/serverInfo"]["name"] == "fanrank"
        lists = [(await post("tools/list"))[1]["result"] for _ in range(2)]
        assert [tool["name"] for tool in lists[0]["tools"]] == [
            *("search_memory", "recent", "explain", "remember", "forget"),
            *(verb.name for verb in offered_at(TOOL)),
        ]
        assert lists[0] == lists[1]
        called = {"name": "search_memory", "arguments": {"queries": ["tea"]}}
        answer = (await post("tools/call", said="search_memory", **called))[1]["result"]
        assert answer["structuredContent"]["answers"][0]["hits"]
        for result in (found, lists[0], answer):
            assert result["resultType"] == "complete"
        for result in (found, lists[0]):
            assert (result["ttlMs"], result["cacheScope"]) == (0, "private")
        # What headers and body say differently, versions that are not spoken, and the handshake of earlier ones.
        assert (await post("tools/call", said="forget", **called))[1]["error"]["code"] == -32020
        status, wrong = await post("server/discover", version="2099-01-01")
        assert (status, wrong["error"]["data"]["supported"]) == (400, [version])
        assert (await post("initialize"))[1]["error"]["code"] == -32601
