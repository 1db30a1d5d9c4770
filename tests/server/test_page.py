"""The page at ``/`` as files and headers, and the endpoints that it asks beside those of every client."""

import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from starlette.testclient import TestClient
from support import source

import fanrank as fr
from fanrank.engine.route.policy import MENU, strategy_of
from fanrank.server import page
from fanrank.server.access import Principal
from fanrank.server.app import make_app
from fanrank.server.limits import Limits
from fanrank.server.problems import Problem
from fanrank.server.search import read_search

FILES = {path.name: path.read_text(encoding="utf-8") for path in page.FILES.values()}
ANA = Principal("ana", ("users/ana",))


@pytest.fixture
def engine() -> fr.Engine:
    engine = fr.Engine()
    engine.namespace("users/ana").add([fr.Record("a", "Ana drinks tea"), fr.Record("b", "green tea and coffee")])
    engine.namespace("users/bo").add([fr.Record("c", "Bo drinks tea")])
    return engine


def test_the_page_opens_without_a_key_also_while_the_server_is_full(engine: fr.Engine) -> None:
    app = make_app(engine, admit=Mock(side_effect=Problem(401, "KeyRequired", "give a key")))
    app.state.fanrank.in_flight = 1 << 20
    with TestClient(app) as client:
        for address, path in page.FILES.items():
            answer = client.get(address)
            assert (answer.status_code, answer.text) == (200, FILES[path.name]), address
            assert answer.headers["content-type"].startswith(page.KINDS[path.suffix])
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            policy = dict(
                part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";")
            )
            assert {policy.pop(name) for name in ("default-src", "base-uri", "form-action", "frame-ancestors")} == {
                "'none'"
            }
            assert {policy.pop(name) for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
            assert policy == {"require-trusted-types-for": "'script'", "trusted-types": "'none'"}
        for address in ("/page/", "/page/index.html", "/page/../page.py", "/page/..%2fpage.py", "/page/none.js"):
            assert client.get(address).status_code == 401, address


def test_every_file_is_served_and_packaged() -> None:
    assert {path.name for path in page.FOLDER.iterdir()} == set(FILES)
    packaged = re.search(r'"fanrank\.server" = \["(.*?)"\]', (Path(source.ROOT) / "pyproject.toml").read_text())
    assert {path.name for path in page.FOLDER.parent.glob(packaged[1])} == set(FILES)
    named = set(re.findall(r'(?:src|href)="(/[^"]*)"', FILES["index.html"]))
    named |= {f"/page/{name}" for text in FILES.values() for name in re.findall(r'from "\./(\S+)"', text)}
    assert named == page.FILES.keys() - {"/"}


def faults_of(name: str, text: str) -> list[str]:
    """What a file of the page may not hold: addresses elsewhere, scripts and styles in place, writers of HTML."""
    forbidden = [r"(?<!xmlns=\")https?://", r"""["'(]//""", r"@import", r"url\("]
    if name.endswith((".html", ".svg")):
        forbidden += [r"<script(?![^>]*\ssrc=)", r"\son\w+\s*=", r"\sstyle\s*=", r"<style", r"javascript:"]
    if name.endswith(".js"):
        forbidden += [
            r"(?:inner|outer)HTML", r"insertAdjacentHTML", r"\.write(?:ln)?\(", r"\beval\b", r"\bFunction\(", r"srcdoc",
            r"DOMParser", r"createContextualFragment", r"setHTML", r"import\(", r"localStorage", r"cookie",
        ]  # fmt: skip
    return [f"{name}: {found}" for pattern in forbidden for found in re.findall(pattern, text)]


def test_the_page_has_no_inline_script_and_no_other_address() -> None:
    assert [fault for name, text in FILES.items() for fault in faults_of(name, text)] == []


def test_every_field_has_a_label() -> None:
    html = FILES["index.html"]
    fields = re.findall(r'<(?:input|textarea|select) id="([\w-]+)"', html)
    assert len(fields) == len(re.findall(r"<(?:input|textarea|select)\b", html)) > 5
    assert {*fields} == {*re.findall(r'<label[^>]* for="([\w-]+)"', html)}
    ids = re.findall(r'\sid="([\w-]+)"', html)
    assert len(ids) == len({*ids})
    for names in re.findall(r'aria-(?:labelledby|describedby|controls)="([^"]*)"', html):
        assert {*names.split()} <= {*ids}


def luminance(color: str) -> float:
    """The relative luminance of ``#rrggbb``, as WCAG 2 has it."""
    parts = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    """From 1 to 21."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colors_have_the_contrast_of_wcag_aa_light_and_dark() -> None:
    light, dark = FILES["page.css"].split("@media (prefers-color-scheme: dark)")
    for scheme in (light, dark[: dark.index("* {")]):
        colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", scheme))
        for ground in ("ground", "raised"):
            for text in ("text", "quiet", "accent", "good", "bad"):
                assert contrast(colors[text], colors[ground]) >= 4.5, (text, ground, colors)
            # Edges of what is typed into and pressed, and bars.
            for edge in ("line", "accent", "bar"):
                assert contrast(colors[edge], colors[ground]) >= 3, (edge, ground, colors)
        assert contrast(colors["on-accent"], colors["accent"]) >= 4.5
    # Colors stand in the two lists of names alone.
    assert len(re.findall(r"#[0-9a-f]{3,8}\b|rgb|hsl", FILES["page.css"])) == 2 * 11


def test_a_timed_search_answers_its_phases_and_its_postings(client: TestClient, engine: fr.Engine) -> None:
    body = {"queries": ["tea", "coffee"], "namespace": "users/ana"}
    timed = client.post("/v1/search", json={**body, "timing": True}).json()
    asked = [fr.Query(text, namespace="users/ana") for text in body["queries"]]
    alone = engine.search(asked, timing=True)
    assert list(timed.pop("timing")) == list(alone.timing or {}) != []
    assert timed.pop("postings") == alone.postings == 3
    assert timed == client.post("/v1/search", json=body).json()
    columns = client.post("/v1/search", json={**body, "timing": True, "form": "columns"}).json()
    assert (list(columns["timing"]), columns["postings"]) == (list(alone.timing or {}), 3)


def test_what_a_body_sets_is_for_the_queries_that_do_not_say_it(client: TestClient, engine: fr.Engine) -> None:
    newest = {"text": "tea", "namespace": "users/bo", "newest": True}
    common = {"under": "users", "now": 0.0, "half_life": "1d", "neighbours": {"window": 1}, "offset": 1}
    answer = client.post("/v1/search", json={"queries": ["tea", newest], **common}).json()
    assert [row["hits"] for row in answer["results"]] == engine.search(["tea", newest], **common).to_dicts()
    limited = {"filter": {"role": "user"}, "min_score": 0.1, "newest": True, "namespace": "users/ana"}
    with pytest.raises(fr.errors.QueryError) as refused:
        engine.search(["tea"], **limited)
    told = client.post("/v1/search", json={"query": "tea", **limited})
    assert (told.status_code, told.json()["detail"]) == (422, str(refused.value))
    # A filter is read once for all queries.
    body = {**limited, "newest": False, "queries": ["tea", {"text": "tea", "k": 1}]}
    assert len({id(query.filter) for query in read_search(body, ANA, Limits()).queries}) == 1


def test_the_monitor_counts_the_searches_of_one_namespace(client: TestClient, engine: fr.Engine) -> None:
    for namespace in ("users/ana", "users/ana", "users/bo"):
        client.post("/v1/search", json={"query": "tea", "namespace": namespace})
    counted = client.get("/v1/monitor", params={"namespace": "users/ana"}).json()
    assert (counted["query_count"], counted["results"]) == (2, {"2-3": 2})
    assert client.get("/v1/monitor", params={"namespace": "none"}).json()["query_count"] == 0


def test_drift_is_told_to_who_may_write(engine: fr.Engine) -> None:
    reader = Principal("reader", ("users/ana",), write=False)
    with TestClient(make_app(engine, admit=lambda request: reader)) as client:
        assert client.post("/v1/drift", json={"namespace": "users/ana"}).json()["title"] == "ReadOnlyKey"
    with TestClient(make_app(engine, admit=lambda request: ANA)) as client:
        first = client.post("/v1/drift", json={"namespace": "users/ana"}).json()
        assert first == {"jaccard": 1.0, "drifted": False, "advice": "nothing to do"}
        engine.namespace("users/ana").add([fr.Record("d", "entirely other words arrive here today")])
        second = client.post("/v1/drift", json={"namespace": "users/ana"}).json()
        assert (second["drifted"], second["jaccard"]) == (True, 5 / 9)


def test_every_strategy_that_is_listed_is_one(client: TestClient) -> None:
    listed = client.get("/v1/strategies").json()["strategies"]
    assert [strategy_of(one["name"]) for one in listed] == [*MENU.values()]


def test_postings_of_a_timed_search_tell_nothing_of_other_namespaces(engine: fr.Engine) -> None:
    body = {"query": "tea drinks", "namespace": "users/ana", "timing": True}
    with TestClient(make_app(engine, admit=lambda request: ANA)) as client:
        before = client.post("/v1/search", json=body).json()["postings"]
        engine.namespace("users/bo").add([fr.Record(f"n{n}", "tea drinks") for n in range(50)])
        assert client.post("/v1/search", json=body).json()["postings"] == before
