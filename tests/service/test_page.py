"""The pages in a real browser, headless Chromium, on a real server: typing, the address of a search, back and forward
through the searches made, and what the page says when the service refuses, is busy or gone."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.http.app import create_app
from lightretriever.service.settings import Settings
from tests.service.browsing import answer_of, asked, more, page_of, search_for, shown_ids
from tests.service.live import live, live_bundles, warm
from tests.support.asking import ids
from tests.support.keys import keys_file
from tests.support.legs import FailingLeg
from tests.support.written import ENTRIES, READER

pytestmark = pytest.mark.slow

BAD_GATEWAY = {"status": 502, "content_type": "text/html", "body": "<h1>Bad</h1>"}
GONE = "The service can't be reached."


def box(page: Page) -> Locator:
    return page.get_by_role("searchbox")


def status(page: Page) -> Locator:
    return page.get_by_role("status")


def again(page: Page) -> Locator:
    return page.get_by_role("button", name="Try again")


def expect_search(page: Page, site: str, text: str, **search: object) -> None:
    expect(box(page)).to_have_value(text)
    whole = ids(answer_of(site, query=text, **search))
    expect(page.locator("li.hit").first).to_have_attribute("data-id", whole[0])
    assert shown_ids(page) == whole


def test_typing_searches_and_an_empty_box_ends_the_search(page: Page, site: str) -> None:
    loaded: list[tuple[str, int]] = []
    page.on("response", lambda response: loaded.append((response.url, response.status)))
    page.goto("/", wait_until="networkidle")
    assert {status for _, status in loaded} == {200}
    assert [address for address, _ in loaded].count(f"{site}/") == 1
    assert {address for address, _ in loaded if not address.startswith((site, "data:"))} == set()
    welcome = page.get_by_role("region", name="How it works")
    for nothing in ("   ", ""):
        search_for(page, "music")
        expect(welcome).to_be_hidden()
        box(page).fill(nothing)
        expect(welcome).to_be_visible()
        expect(page.locator("li.hit")).to_have_count(0)
        expect(status(page)).to_be_empty()
    held: list[Route] = []

    def hold_back(route: Route) -> None:
        if asked(route.request)["query"] == "slow":
            held.append(route)
        else:
            route.continue_()

    page.route("**/search", hold_back)
    with page.expect_request("**/search"):
        box(page).fill("slow")
    expect(page.locator("body")).to_have_class(re.compile("busy"))
    box(page).fill("")
    expect(page.locator("body")).not_to_have_class(re.compile("busy"))
    with page.expect_request("**/search"):
        box(page).fill("slow")
    search_for(page, "scientific papers")
    shown = page.locator("#hits").inner_text()
    for route in held:  # a stale answer overwrites no newer one
        route.abort()
    page.wait_for_timeout(100)
    assert page.locator("#hits").inner_text() == shown


def test_a_browser_that_refuses_the_address_still_searches(browser: Browser, site: str) -> None:
    messages: list[str] = []
    with browser.new_page(base_url=site) as page:
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.goto("/")
        refuse = "throw new DOMException('too many', 'SecurityError')"
        page.evaluate(f"() => {{ history.replaceState = history.pushState = () => {{ {refuse}; }}; }}")
        search_for(page, "music")
        expect(page.locator("li.hit")).to_have_count(10)
    assert {message for message in messages if "too many" not in message} == set()


def test_the_page_asks_for_a_key_where_one_is_needed(browser: Browser, tiny_path: Path, tmp_path: Path) -> None:
    with live_bundles(tiny_path, api_keys_file=keys_file(tmp_path, *ENTRIES)) as url, page_of(browser, url) as page:
        asked = page.get_by_label("This service asks for an API key", exact=False)
        expect(asked).to_be_hidden()
        box(page).fill("music")
        expect(status(page)).to_contain_text("Send your API key")
        for wrong, told in (("wrong", "not known"), ("\u30ad\u30fc", "Send your API key")):
            asked.fill(wrong)
            page.get_by_role("button", name="Use it").click()
            expect(status(page)).to_contain_text(told)
            expect(asked).to_have_value("")
        asked.fill(READER)
        asked.press("Enter")
        expect(page.locator("li.hit")).to_have_count(10)
        expect(asked).to_be_hidden()
        page.reload()
        box(page).fill("player")
        expect(page.locator("li.hit")).to_have_count(10)
        assert READER not in page.content()
        with page_of(browser, url, "/#q=music") as other:  # another tab has no key
            expect(status(other)).to_contain_text("Send your API key")
        page.evaluate("sessionStorage.clear()")  # a key that is gone is asked for anew
        more(page).click()
        expect(status(page)).to_contain_text("Send your API key")
        expect(asked).to_be_visible()


def test_back_and_forward_lead_through_finished_searches_and_modes(page: Page, site: str) -> None:
    before: int = page.evaluate("history.length")
    for text in ("music", "music pl", "music player"):
        search_for(page, text)
    assert page.evaluate("history.length") == before + 1  # however it is typed
    page.keyboard.press("Enter")
    assert page.evaluate("history.length") == before + 1
    search_for(page, "scientific papers")
    page.keyboard.press("Enter")
    assert page.evaluate("history.length") == before + 2
    search_for(page, "chess games")
    page.locator("li.hit").first.get_by_text("Why this hit?").click()  # leaving the box finishes a search
    search_for(page, "text editor")
    searches = ("music player", "scientific papers", "chess games")
    for text in reversed(searches):
        page.go_back()
        expect_search(page, site, text)
    page.go_back()
    expect(box(page)).to_have_value("")
    expect(page.locator("li.hit")).to_have_count(0)
    for text in searches:
        page.go_forward()
        expect_search(page, site, text)
    page.get_by_label("Sparse", exact=True).check()
    expect(page.locator("li.hit").first).to_contain_text("–")
    expect_search(page, site, "chess games", mode="sparse")
    expect(page).to_have_url(f"{site}/#q=chess+games&mode=sparse")
    page.go_back()
    expect(page.get_by_label("Hybrid", exact=True)).to_be_checked()
    expect_search(page, site, "chess games")
    page.go_forward()
    expect(page.get_by_label("Sparse", exact=True)).to_be_checked()
    expect_search(page, site, "chess games", mode="sparse")


def test_a_link_searches_and_becomes_the_address_of_the_search(page: Page, site: str) -> None:
    for address, mode in (("#q=music&mode=bogus", "Hybrid"), ("#q=player&mode=dense", "Dense")):
        with page.expect_response("**/search"):
            page.evaluate("address => { location.hash = address; }", address)
        expect(page.get_by_label(mode, exact=True)).to_be_checked()
        expect(page.locator("li.hit")).to_have_count(10)
    assert box(page).input_value() == "player"
    page.goto("/?q=music+player&mode=sparse")
    expect_search(page, site, "music player", mode="sparse")
    expect(page).to_have_url(f"{site}/#q=music+player&mode=sparse")
    search_for(page, "chess games")
    page.go_back()
    expect_search(page, site, "music player", mode="sparse")
    page.goto("/?q=music%20%26%20%3Cb%3Eplayer%3C/b%3E#")
    expect_search(page, site, "music & <b>player</b>")
    page.goto("/?utm=1")
    expect(box(page)).to_have_value("")
    expect(page.get_by_label("Hybrid", exact=True)).to_be_checked()


def fail_searches(page: Page, answer: dict[str, Any] | None) -> None:
    """Answer searches in another way, or not at all."""
    page.route("**/search", lambda route: route.fulfill(**answer) if answer else route.abort())


def test_what_goes_wrong_is_told_and_can_be_tried_again(page: Page, site: str) -> None:
    box(page).fill("x" * 10_001)
    expect(status(page)).to_contain_text("at most 10000 are possible")
    expect(again(page)).to_be_hidden()
    for answer, told in ((None, GONE), (BAD_GATEWAY, "The service's answer can't be read (status 502).")):
        search_for(page, "music")
        fail_searches(page, answer)
        box(page).fill("player")
        expect(status(page)).to_have_text(told)
        expect(page.locator("li.hit")).to_have_count(0)
        page.unroute("**/search")
        again(page).click()
        expect(page.locator("li.hit")).to_have_count(10)
        expect(again(page)).to_be_hidden()
    for wrong in ("is.bogus=x", "from.bogus=3"):  # a link that asks for an undeclared field
        page.goto("about:blank")
        page.goto(f"{site}/#q=music&mode=hybrid&{wrong}")
        expect(status(page)).to_contain_text("documents can't be filtered by this field")
        page.get_by_role("button", name="Clear filters").click()
        expect_search(page, site, "music")
        expect(page.locator("#filters")).to_be_hidden()
        assert "bogus" not in page.url
    page.goto("about:blank")
    page.route("**/info", lambda route: route.abort())
    page.goto(f"{site}/#q=music&mode=sparse")  # opened while the service is away
    expect(status(page)).to_have_text(GONE)
    page.unroute("**/info")
    again(page).click()
    expect(page.locator("li.hit").first).to_be_visible()
    expect(page.get_by_label("Sparse", exact=True)).to_be_checked()


def test_a_leg_that_did_not_answer_and_a_busy_service_are_told(browser: Browser, tiny_bundle: Bundle) -> None:
    """One request is worked on and none may wait; the place is taken as long as `admission` is entered here."""
    settings = Settings(deadline_ms=60_000, warm_up_queries=1, search_threads=1, max_waiting=0, watch_s=0)
    with warm(tiny_bundle, settings) as engine:
        FailingLeg(engine, "sparse")
        app = create_app(engine)
        with live(app) as url, page_of(browser, url) as page:
            search_for(page, "music")
            expect(status(page)).to_contain_text("Without the sparse leg, which did not answer.")
            expect(page.locator("li.hit")).to_have_count(10)
            with app.state.admission.enter():
                box(page).fill("player")
                expect(status(page)).to_contain_text("requests wait already")
                expect(page.locator("li.hit")).to_have_count(0)
            again(page).click()
            expect(page.locator("li.hit")).to_have_count(10)
