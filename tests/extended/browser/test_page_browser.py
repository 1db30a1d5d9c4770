"""The page at ``/`` in headless Chromium, as a person uses it."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from support.serving import running, served

import fanrank as fr
from fanrank.server.app import make_app
from fanrank.server.keys import Keyring, add_key

CHROMIUM = "/usr/bin/chromium"
"""Of Debian's package. Where it is not, Playwright's own is asked for: ``playwright install chromium``."""

SCRIPT = "</script><script>hacked = 1</script><img src=x onerror='hacked = 1'><a href='javascript:hacked = 1'>x</a>"
NARROW = {"width": 400, "height": 800}
WAIT = 300_000
"""Milliseconds in which what must happen does."""

# For each element with text of its own: its color and the one behind it, both over what lies below.
CONTRASTS = """() => {
  const read = (color) => color.match(/[\\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a)];
  const ground = (element) => element === null ? [255, 255, 255]
    : over(read(getComputedStyle(element).backgroundColor), ground(element.parentElement));
  const luminance = (color) => color.map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  return [...document.querySelectorAll("body *")].filter((element) => element.checkVisibility()
    && !element.disabled
    && (element.value || [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  ).map((element) => {
    const behind = ground(element), color = over(read(getComputedStyle(element).color), behind);
    const [dark, light] = [luminance(color), luminance(behind)].sort((a, b) => a - b);
    return [element.outerHTML.slice(0, 90), (light + 0.05) / (dark + 0.05)];
  });
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # The sandbox needs rights that a container's root has not.
        installed = CHROMIUM if os.access(CHROMIUM, os.X_OK) else None
        browser = playwright.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def engine() -> fr.Engine:
    engine = fr.Engine()
    day = "2026-11-{}T09:00:00Z"
    texts = [
        "Ana prefers tea, and meetings after ten",
        "Error 4711 in the billing job: fixed by rotating the API key",
        "Billing job failed again: error 4711, key expired",
        "Ana drank coffee in Lisbon",
        "Bo asked whether tea or coffee is served",
    ]
    engine.namespace("users/ana").add(
        [
            fr.Record(
                f"m{place}", text, session="s", time=day.format(15 + place), payload={"n": place, "large": 2**63 + 1},
                entities={"Ana": "person/ana"} if "Ana" in text else None,
            )
            for place, text in enumerate(texts)
        ]
    )  # fmt: skip
    hostile = fr.Record(SCRIPT, f"zebra {SCRIPT}", payload={SCRIPT: SCRIPT}, extra={"x": SCRIPT}, time=9e14)
    engine.namespace("hostile").add([hostile])
    engine.namespace(SCRIPT).add([fr.Record("x", "y")])
    unbroken = fr.Record("i" * 200, f"tea {'w' * 300}", session="s" * 100, payload={"p" * 200: "v" * 200})
    engine.namespace("long").add([unbroken, fr.Record("b", "what did Ana drink? coffee")])
    engine.namespace("notes").add([fr.Record(f"n{place:02}", f"note {place}") for place in range(45)])
    return engine


@pytest.fixture(scope="module")
def url(engine: fr.Engine) -> Iterator[str]:
    # As `serve` does without keys: it answers its own page, and no other site's.
    with running(make_app(engine, local=True)) as url:
        yield url


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens an address in a context of its own. At the end: no script failed, and nothing elsewhere was asked for."""
    with ExitStack() as stack:
        problems: list[str] = []

        def opened(address: str, **options: Any) -> Page:
            context = browser.new_context(**options)
            stack.callback(context.close)
            context.set_default_timeout(WAIT)
            page = context.new_page()
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("console", lambda message: "Failed to load" not in message.text and problems.append(message.text))
            page.on("request", lambda request: request.url.startswith(address) or problems.append(request.url))
            page.goto(address)
            return page

        yield opened
        assert problems == []


@pytest.fixture
def page(open_page: Callable[..., Page], url: str) -> Page:
    return open_page(url)


def search(
    page: Page,
    *queries: str,
    namespace: str = "users/ana",
    strategies: tuple[str, ...] = ("bm25",),
    under: bool = False,
) -> None:
    """Search, and wait until all is answered."""
    expect(page.locator("#strategies input").first).to_be_visible(timeout=WAIT)
    page.fill("#namespace", namespace)
    page.set_checked("#under", under)
    page.fill("#queries", "\n".join(queries))
    page.evaluate("document.querySelector('#more').open = true")
    for box in page.locator('input[name="strategy"]:checked').all()[::-1]:
        box.uncheck()
    for name in strategies:
        page.check(f'input[name="strategy"][value="{name}"]')
    page.click("#search button.main")
    expect(page.locator("#status")).to_contain_text(re.compile(r"\d+ hits? for"), timeout=WAIT)


def ids(page: Page, column: int = 0, query: int = 0) -> list[str]:
    found = page.locator(".query").nth(query).locator(".column").nth(column)
    return found.locator(".hit .id").all_inner_texts()


def too_wide(page: Page) -> list[str]:
    """What is cut off, or makes the page scroll sideways. A table scrolls by itself."""
    found: list[str] = page.evaluate(
        """() => [document.documentElement, ...document.querySelectorAll("body, body *:not(.scroll, input)")]
          .filter((element) => element.clientWidth > 0 && element.scrollWidth > element.clientWidth)
          .map((element) => element.outerHTML.slice(0, 90))"""
    )
    return found


def test_several_queries_are_searched_and_each_hit_has_its_place(page: Page, engine: fr.Engine) -> None:
    queries = ["error 4711", "what does Ana drink", "zebra"]
    search(page, *queries)
    found = engine.search([fr.Query(text, namespace="users/ana") for text in queries])
    assert page.locator(".query h2").all_inner_texts() == queries
    assert [ids(page, query=row) for row in range(3)] == [[hit.id for hit in hits] for hits in found]
    assert page.inner_text("#status") == f"{int(found.counts.sum())} hits for 3 queries by 1 strategy."
    expect(page.locator(".query").nth(2)).to_contain_text("no record holds a word of the query")
    search(page, *queries, namespace="users", under=True)
    assert [ids(page, query=row) for row in range(3)] == [[hit.id for hit in hits] for hits in found]


def test_a_score_is_taken_apart_and_adds_up(page: Page, engine: fr.Engine) -> None:
    search(page, "tea meetings")
    page.locator(".hit").first.click()
    expected = engine.explain(fr.Query("tea meetings", namespace="users/ana"), "m0")
    assert isinstance(expected, fr.reports.Explanation)
    expect(page.locator(".sum")).to_have_text(
        f"{expected.quanta:,} quanta / 2^18 = {expected.score!r}: exactly the score.", timeout=WAIT
    )
    rows = [row.locator("th, td").all_inner_texts() for row in page.locator(".opened tbody tr").all()]
    assert [(row[0], row[1]) for row in rows] == [(term.term, f"{term.quanta:,}") for term in expected.terms]
    assert sum(int(row[1].replace(",", "")) for row in rows) == expected.quanta
    expect(page.locator(".opened pre").last).to_have_text(re.compile(rf'"n": 0,\s+"large": {2**63 + 1}\s'))
    page.locator(".hit").first.click()
    expect(page.locator(".opened").first).to_be_hidden()


def test_channels_add_up_too_and_what_a_neighbour_lends_is_shown(page: Page) -> None:
    search(page, "what did Ana drink", strategies=("recall", "dialogue-words"))
    for column in range(2):
        page.locator(".column").nth(column).locator(".hit").first.click()
    for column, sums in ((0, 2), (1, 2)):
        opened = page.locator(".column").nth(column)
        expect(opened.locator(".sum")).to_have_count(sums, timeout=WAIT)
        expect(opened.locator(".sum.bad")).to_have_count(0)
        expect(opened.locator("caption").first).to_have_text("Channel by channel")
    expect(page.locator(".column").nth(1)).to_contain_text("lent by")


def test_a_sum_that_is_not_the_score_and_a_memory_that_changed_are_called_so(open_page: Callable[..., Page]) -> None:
    def falsify(route: Any) -> None:
        answer = route.fetch()
        body = answer.json()
        body["terms"][0]["quanta"] += 1
        route.fulfill(response=answer, json=body)

    engine = fr.Engine()
    engine.add([fr.Record("a", "tea"), fr.Record("b", "coffee")])
    with served(engine) as url:
        page = open_page(url)
        page.route("**/v1/explain", falsify)
        search(page, "tea", namespace="")
        page.locator(".hit").first.click()
        expect(page.locator(".sum.bad")).to_contain_text("this is not the score", timeout=WAIT)
        page = open_page(url)
        search(page, "tea", namespace="")
        engine.add([fr.Record("c", "more tea")])
        page.locator(".hit").first.click()
        expect(page.locator(".opened")).to_contain_text("Search again", timeout=WAIT)


def test_strategies_stand_side_by_side_with_their_decisions_and_times(page: Page, engine: fr.Engine) -> None:
    names = ("bm25", "auto", "recall")
    search(page, "what did Ana drink last Friday?", strategies=names)
    assert [title.split(maxsplit=1)[0] for title in page.locator(".query .column > h3").all_inner_texts()] == [*names]
    columns = page.locator(".query .column")
    expect(columns.nth(1)).to_contain_text("dialogue-words")
    expect(columns.nth(1)).to_contain_text("no vectors to compare")
    expect(columns.nth(2)).to_contain_text("person/ana 1")
    expect(columns.nth(2)).to_contain_text("time that was read")
    expect(columns.first.locator(".also").first).to_contain_text("recall 1")
    expect(page.locator(".same").first).to_contain_text("The same hits in the same order as")
    expect(page.locator(".times summary")).to_have_text(
        re.compile(r"Times in microseconds: bm25 [\d,]+ µs, auto [\d,]+ µs, recall [\d,]+ µs")
    )
    page.click(".times summary")
    expect(page.locator(".times .column").first).to_contain_text(
        re.compile(r"\d+ postings were read; the namespace has \d+ in \d")
    )
    boxes = [box for box in (column.bounding_box() for column in columns.all()) if box is not None]
    assert len({box["y"] for box in boxes}) == 1
    assert [box["x"] for box in boxes] == sorted({box["x"] for box in boxes})


def test_a_strategy_that_fails_says_why_beside_those_that_answer(page: Page) -> None:
    search(page, "tea", strategies=("bm25", "fused"))
    expect(page.locator(".column").nth(1)).to_contain_text("QueryError: the engine holds no vectors")
    expect(page.locator("#status")).to_have_text("2 hits for 1 query by 1 strategy; 1 strategy failed.")
    assert len(ids(page)) == 2


def test_a_hostile_record_stays_text(page: Page) -> None:
    search(page, "zebra", f"zebra {SCRIPT}", namespace="hostile")
    for column in range(2):
        hit = page.locator(".query .column").nth(column).locator(".hit")
        assert hit.locator(".id").inner_text() == SCRIPT
        assert hit.locator(".text").text_content() == f"zebra {SCRIPT}"
        hit.click()
    expect(page.locator(".opened pre")).to_have_count(4, timeout=WAIT)
    assert SCRIPT in str(json.loads(page.locator(".opened pre").first.text_content() or ""))
    page.click("#tab-records")
    expect(page.locator("#record-list .id")).to_have_text(SCRIPT, timeout=WAIT)
    page.locator("#record-list .hit").click()
    expect(page.locator("#record-list pre")).to_contain_text("onerror='hacked = 1'")
    page.locator("#namespace-list button", has_text="</script>").click()
    expect(page.locator("#records-title")).to_have_text(f"Records of {SCRIPT}")
    assert page.locator("img, main a, main script").count() == 0
    assert page.evaluate("typeof hacked") == "undefined"


def test_a_key_is_asked_for_and_kept_in_the_session_alone(
    open_page: Callable[..., Page], engine: fr.Engine, tmp_path: Path
) -> None:
    key = add_key(tmp_path / "keys.json", ["users/ana"])
    with served(engine, admit=Keyring(tmp_path / "keys.json")) as url:
        page = open_page(url)
        expect(page.locator("#key-form")).to_contain_text("This server asks for a key.", timeout=WAIT)
        expect(page.locator("#key")).to_be_focused()
        page.fill("#key", "fanrank_" + "0" * 16 + "_" + "A" * 43)
        page.keyboard.press("Enter")
        expect(page.locator("#key-form")).to_contain_text("This server does not know the key.", timeout=WAIT)
        page.fill("#key", key)
        page.keyboard.press("Enter")
        search(page, "tea")
        assert ids(page) == ["m0", "m4"]
        stored = page.evaluate(
            "[Object.values(sessionStorage), Object.values(localStorage), document.cookie, location.href]"
        )
        assert stored == [[key], [], "", f"{url}/"]
        assert key not in page.content()
        search_elsewhere = page.locator("#namespace")
        search_elsewhere.fill("hostile")
        page.click("#search button.main")
        expect(page.locator(".column")).to_contain_text("NamespaceForbidden", timeout=WAIT)
        # Such a key sees the sizes of its own namespaces.
        search_elsewhere.fill("users/ana")
        page.click("#tab-state")
        expect(page.locator("#stats-title")).to_have_text("Memory of the namespace", timeout=WAIT)
        page.click("#tab-records")
        expect(page.locator("#namespace-list button")).to_have_text(["users/ana 5 records"], timeout=WAIT)


def test_a_server_that_is_gone_is_said_and_its_return_too(open_page: Callable[..., Page], engine: fr.Engine) -> None:
    with ExitStack() as stack:
        page = open_page(stack.enter_context(served(engine)))
        search(page, "tea")
        stack.close()
        page.click("#search button.main")
        expect(page.locator("#alert")).to_contain_text("The server does not answer", timeout=WAIT)
        expect(page.locator(".column").first).to_contain_text("The server does not answer")
        expect(page.locator("#status")).to_have_text("No strategy answered.")
    with served(engine) as url:
        page = open_page(url)
        search(page, "tea")
        page.context.set_offline(True)
        page.click("#search button.main")
        expect(page.locator("#alert")).to_contain_text("tries again", timeout=WAIT)
        page.context.set_offline(False)
        expect(page.locator("#status")).to_have_text("The server answers again.", timeout=WAIT)
        expect(page.locator("#alert")).to_be_empty()


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    expect(page.locator("#strategies input").first).to_be_visible(timeout=WAIT)
    expect(page.locator("#namespace-list li")).not_to_have_count(0)
    keys = page.keyboard
    focused = page.locator("*:focus")
    keys.press("Tab")
    expect(page.locator("#tab-search")).to_be_focused()
    keys.press("Tab")
    expect(page.locator("#namespace")).to_be_focused()
    keys.type("users/ana")
    keys.press("Tab")
    expect(page.locator("#queries")).to_be_focused()
    keys.type("tea and coffee / twice")
    keys.press("Enter")
    keys.type("error 4711")
    keys.press("Control+Enter")
    expect(page.locator("#status")).to_contain_text("for 2 queries by 2 strategies", timeout=WAIT)
    assert "/" in page.input_value("#queries")
    # From the last field of the form into the first list of hits, which is one stop.
    page.locator("#search button.main").focus()
    keys.press("Tab")
    first = page.locator(".hits").first.locator(".hit")
    expect(first.nth(0)).to_be_focused()
    keys.press("ArrowDown")
    expect(first.nth(1)).to_be_focused()
    keys.press("ArrowRight")
    expect(page.locator(".hits").nth(1).locator(".hit").nth(1)).to_be_focused()
    keys.press("ArrowLeft")
    keys.press("End")
    expect(first.last).to_be_focused()
    keys.press("Home")
    keys.press("Enter")
    expect(page.locator(".sum").first).to_be_visible(timeout=WAIT)
    expect(first.nth(0)).to_have_attribute("aria-expanded", "true")
    keys.press("Escape")
    expect(page.locator(".opened").first).to_be_hidden()
    expect(first.nth(0)).to_be_focused()
    keys.press("Tab")
    assert focused.evaluate("element => element.closest('.hits') !== document.querySelector('.hits')")
    keys.press("/")
    expect(page.locator("#queries")).to_be_focused()
    page.locator("#tab-search").focus()
    keys.press("ArrowRight")
    expect(page.locator("#tab-records")).to_be_focused()
    expect(page.locator("#record-list .hit")).to_have_count(5, timeout=WAIT)
    keys.press("ArrowRight")
    expect(page.locator("#state")).to_be_visible()
    expect(page.locator("#records")).to_be_hidden()


def test_records_are_read_page_by_page(page: Page) -> None:
    page.click("#tab-records")
    listed = page.locator("#namespace-list button")
    listed.filter(has_text="notes 45 records").click()
    expect(listed.filter(has_text="notes 45 records")).to_be_focused()
    expect(page.locator("#records-title")).to_have_text("Records of notes")
    shown = page.locator("#record-list .id")
    expect(shown.first).to_have_text("n00", timeout=WAIT)
    assert shown.count() == 20
    page.click("#next")
    expect(shown.first).to_have_text("n20", timeout=WAIT)
    page.click("#next")
    expect(shown).to_have_count(5, timeout=WAIT)
    expect(page.locator("#next")).to_be_disabled()
    page.click("#previous")
    expect(shown.first).to_have_text("n20", timeout=WAIT)
    page.check("#reverse")
    expect(shown.first).to_have_text("n44", timeout=WAIT)
    expect(page.locator("#previous")).to_be_disabled()
    page.fill("#namespace", "nobody")
    page.locator("#namespace").press("Enter")
    expect(page.locator("#records-note")).to_have_text("No records here.", timeout=WAIT)


def test_a_text_that_is_edited_gets_vectors_of_its_own(open_page: Callable[..., Page]) -> None:
    engine = fr.Engine(encoder=fr.OwnVectors(2))
    engine.add([fr.Record("a", "tea", role="user", embedding=[1, 0])])
    with served(engine) as url:
        page = open_page(url)
        page.click("#tab-records")
        page.locator("#record-list .id").first.click()
        page.get_by_role("button", name="Edit").click()
        text = page.get_by_label("Fields of a")
        text.fill(text.input_value().replace("tea", "coffee"))
        page.get_by_role("button", name="Preview").click()
        page.get_by_role("button", name="Write it").click()
        expect(page.locator("#record-list")).to_contain_text("coffee", timeout=WAIT)
    record = engine.get("a")
    assert (record.text, record.role, record.embedding is None) == ("coffee", "user", True)


def test_figures_are_live(open_page: Callable[..., Page]) -> None:
    engine = fr.Engine()
    engine.add([fr.Record("a", "tea")])
    with served(engine) as url:
        page = open_page(url)
        page.click("#tab-state")
        documents = page.locator("#stats div", has=page.locator("dt", has_text=re.compile("^documents$"))).locator("dd")
        expect(documents).to_have_text("1", timeout=WAIT)
        engine.add([fr.Record("b", "coffee")])
        engine.search(["tea"])
        expect(documents).to_have_text("2", timeout=WAIT)
        queries = page.locator("#monitor div", has=page.locator("dt", has_text=re.compile("^queries$"))).locator("dd")
        expect(queries).to_have_text("1", timeout=WAIT)
        page.click("#drift-check")
        expect(page.locator("#drift")).to_have_text("100 % of the words are the same; nothing to do.", timeout=WAIT)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_the_contrast_of_wcag_aa_and_nothing_scrolls_sideways_at_400_pixels(
    open_page: Callable[..., Page], url: str, scheme: Any
) -> None:
    page = open_page(url, color_scheme=scheme, viewport=NARROW, reduced_motion="reduce")
    search(
        page, "tea coffee " + "w" * 300, "what did Ana drink", namespace="long", strategies=("bm25", "recall", "fused")
    )
    for hit in page.locator(".query .hit").all()[:6]:
        hit.click()
    page.click(".times summary")
    page.evaluate(
        "document.querySelector('#key-form').hidden = false; document.querySelector('#alert').textContent = 'x'"
    )
    expect(page.locator(".sum").first).to_be_visible(timeout=WAIT)
    for tab in ("search", "records", "state"):
        page.click(f"#tab-{tab}")
        expect(page.locator(f"#{tab} :is(.hit, dd)").first).to_be_visible(timeout=WAIT)
        if tab == "records":
            page.locator("#record-list .hit").first.click()
        page.evaluate("document.querySelector('#alert').textContent = 'The server does not answer.'")
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 20
        assert [(element, ratio) for element, ratio in contrasts if ratio < 4.5] == []
        assert too_wide(page) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    assert page.locator(".hit").first.evaluate("element => getComputedStyle(element).transitionDuration") == "0s"
