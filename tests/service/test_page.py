"""The pages in a real browser, headless Chromium, on a real server: what is shown, the address of a search, back and
forward through the searches made, and what the page says when the service refuses, is busy or gone."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.http.app import create_app
from lightretriever.service.settings import Settings
from tests.service.browsing import answer_of, page_of, search_for, shown_ids
from tests.service.live import live, live_bundles, warm
from tests.support.asking import ids
from tests.support.keys import keys_file
from tests.support.legs import FailingLeg
from tests.support.written import ENTRIES, READER

pytestmark = pytest.mark.slow

BAD_GATEWAY = {"status": 502, "content_type": "text/html", "body": "<h1>Bad</h1>"}


def test_the_address_is_followed_and_a_bogus_mode_is_the_hybrid_one(page: Page) -> None:
    for address, mode in (("#q=music&mode=bogus", "Hybrid"), ("#q=player&mode=dense", "Dense")):
        with page.expect_response("**/search"):
            page.evaluate("address => { location.hash = address; }", address)
        expect(page.get_by_label(mode, exact=True)).to_be_checked()
        expect(page.locator("li.hit")).to_have_count(10)
    assert page.get_by_role("searchbox").input_value() == "player"


def test_a_browser_that_refuses_the_address_still_searches(page: Page, messages: list[str]) -> None:
    refuse = "throw new DOMException('too many', 'SecurityError')"
    page.evaluate(f"() => {{ history.replaceState = history.pushState = () => {{ {refuse}; }}; }}")
    search_for(page, "music")
    expect(page.locator("li.hit")).to_have_count(10)
    assert {message for message in messages if "too many" not in message} == set()
    messages.clear()


def test_emptying_the_box_ends_the_search_under_way(page: Page) -> None:
    page.route("**/search", lambda route: None)
    with page.expect_request("**/search"):
        page.get_by_role("searchbox").fill("music")
    expect(page.locator("body")).to_have_class(re.compile("busy"))
    page.get_by_role("searchbox").fill("")
    expect(page.locator("body")).not_to_have_class(re.compile("busy"))


def test_a_stale_answer_does_not_overwrite_a_newer_one(page: Page) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        if json.loads(route.request.post_data or "{}")["query"] == "slow":
            held.append(route)
        else:
            route.continue_()

    page.route("**/search", hold)
    with page.expect_request("**/search"):
        page.get_by_role("searchbox").fill("slow")
    search_for(page, "scientific papers")
    shown = page.locator("#hits").inner_text()
    for route in held:
        route.abort()
    page.wait_for_timeout(100)
    assert page.locator("#hits").inner_text() == shown


def test_a_slash_leads_to_the_box_and_is_a_slash_there(page: Page) -> None:
    page.get_by_role("searchbox").blur()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    expect(page.get_by_role("searchbox")).to_have_value("")
    page.get_by_role("searchbox").press_sequentially("a/b")
    expect(page.get_by_role("searchbox")).to_have_value("a/b")


def test_the_page_says_how_it_works_until_someone_types(page: Page) -> None:
    welcome = page.get_by_role("region", name="How it works")
    expect(welcome).to_be_visible()
    search_for(page, "music")
    expect(welcome).to_be_hidden()
    for nothing in ("   ", ""):
        page.get_by_role("searchbox").fill(nothing)
        expect(welcome).to_be_visible()
        expect(page.locator("li.hit")).to_have_count(0)
        expect(page.get_by_role("status")).to_be_empty()
        search_for(page, "music")


def test_the_page_asks_for_a_key_where_one_is_needed(browser: Browser, tiny_path: Path, tmp_path: Path) -> None:
    with live_bundles(tiny_path, api_keys_file=keys_file(tmp_path, *ENTRIES)) as url, page_of(browser, url) as page:
        asked = page.get_by_label("This service asks for an API key", exact=False)
        expect(asked).to_be_hidden()
        page.get_by_role("searchbox").fill("music")
        expect(page.get_by_role("status")).to_contain_text("Send your API key")
        for wrong, told in (("wrong", "not known"), ("\u30ad\u30fc", "Send your API key")):
            asked.fill(wrong)
            page.get_by_role("button", name="Use it").click()
            expect(page.get_by_role("status")).to_contain_text(told)
            expect(asked).to_have_value("")
        asked.fill(READER)
        asked.press("Enter")
        expect(page.locator("li.hit")).to_have_count(10)
        expect(asked).to_be_hidden()
        page.reload()
        page.get_by_role("searchbox").fill("player")
        expect(page.locator("li.hit")).to_have_count(10)
        assert READER not in page.content()
        with page_of(browser, url, "/#q=music") as other:  # another tab has no key
            expect(other.get_by_role("status")).to_contain_text("Send your API key")


def test_a_key_that_is_gone_is_asked_for_anew(browser: Browser, tiny_path: Path, tmp_path: Path) -> None:
    with (
        live_bundles(tiny_path, api_keys_file=keys_file(tmp_path, *ENTRIES)) as url,
        page_of(browser, url, "/#q=music") as page,
    ):
        asked = page.get_by_label("This service asks for an API key", exact=False)
        asked.fill(READER)
        asked.press("Enter")
        expect(page.locator("li.hit")).to_have_count(10)
        expect(asked).to_be_hidden()
        page.evaluate("sessionStorage.clear()")
        page.get_by_role("button", name="More hits").click()
        expect(page.get_by_role("status")).to_contain_text("Send your API key")
        expect(page.locator("li.hit")).to_have_count(10)
        expect(asked).to_be_visible()


def test_nothing_is_loaded_from_elsewhere(page: Page, site: str) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto("/", wait_until="networkidle")
    assert requested.count(f"{site}/") == 1
    assert {address for address in requested if not address.startswith((site, "data:"))} == set()


def finish(page: Page, text: str) -> None:
    """Search, and press Enter."""
    search_for(page, text)
    page.keyboard.press("Enter")


def entries(page: Page) -> int:
    number: int = page.evaluate("history.length")
    return number


def expect_search(page: Page, site: str, text: str, **search: object) -> None:
    expect(page.get_by_role("searchbox")).to_have_value(text)
    whole = ids(answer_of(site, query=text, **search))
    expect(page.locator("li.hit").first).to_have_attribute("data-id", whole[0])
    assert shown_ids(page) == whole


def test_back_and_forward_lead_through_finished_searches(page: Page, site: str) -> None:
    for text in ("music player", "scientific papers", "chess games"):
        finish(page, text)
    page.go_back()
    expect_search(page, site, "scientific papers")
    page.go_back()
    expect_search(page, site, "music player")
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value("")
    expect(page.locator("li.hit")).to_have_count(0)
    for text in ("music player", "scientific papers", "chess games"):
        page.go_forward()
        expect_search(page, site, text)


def test_a_search_is_one_entry_however_it_is_typed(page: Page) -> None:
    before = entries(page)
    for text in ("music", "music pl", "music player"):
        search_for(page, text)
    assert entries(page) == before + 1
    page.keyboard.press("Enter")
    assert entries(page) == before + 1
    search_for(page, "chess")
    assert entries(page) == before + 2


def test_leaving_the_box_finishes_a_search(page: Page, site: str) -> None:
    search_for(page, "music player")
    page.locator("li.hit").first.get_by_text("Why this hit?").click()
    search_for(page, "chess games")
    page.go_back()
    expect_search(page, site, "music player")


def test_modes_and_weights_are_entries_too(page: Page, site: str) -> None:
    finish(page, "music player")
    page.get_by_label("Sparse", exact=True).check()
    expect(page.locator("li.hit").first).to_contain_text("–")
    expect_search(page, site, "music player", mode="sparse")
    expect(page).to_have_url(f"{site}/#q=music+player&mode=sparse")
    page.get_by_label("Hybrid", exact=True).check()
    slider = page.get_by_label("Weight of the dense leg")
    with page.expect_response("**/search"):
        slider.press("Home")
    weights = {"method": "linear", "weights": {"dense": 0, "sparse": 1}}
    expect_search(page, site, "music player", fusion=weights)
    page.go_back()
    expect(slider).to_have_value("70")
    expect_search(page, site, "music player")
    page.go_back()
    expect(page.get_by_label("Sparse", exact=True)).to_be_checked()
    expect_search(page, site, "music player", mode="sparse")
    page.go_forward()
    page.go_forward()
    expect(slider).to_have_value("0")
    expect_search(page, site, "music player", fusion=weights)


@pytest.mark.usefixtures("failing")
def test_a_link_that_asks_for_an_undeclared_field_says_so_and_can_be_corrected(page: Page, site: str) -> None:
    for wrong in ("is.bogus=x", "from.bogus=3"):
        page.goto("about:blank")
        page.goto(f"{site}/#q=music&mode=hybrid&{wrong}")
        expect(page.get_by_role("status")).to_contain_text("documents can't be filtered by this field")
        page.get_by_role("button", name="Clear filters").click()
        expect_search(page, site, "music")
        expect(page.locator("#filters")).to_be_hidden()
        assert "bogus" not in page.url


def test_a_link_with_a_query_searches_and_becomes_the_address_of_the_search(page: Page, site: str) -> None:
    page.goto("/?q=music+player&mode=sparse")
    expect_search(page, site, "music player", mode="sparse")
    expect(page).to_have_url(f"{site}/#q=music+player&mode=sparse")
    search_for(page, "chess games")
    page.go_back()
    expect_search(page, site, "music player", mode="sparse")
    page.goto("/?utm=1")
    expect(page.get_by_role("searchbox")).to_have_value("")
    expect(page.get_by_label("Hybrid", exact=True)).to_be_checked()


def test_an_address_in_percent_signs_is_text(page: Page, site: str) -> None:
    page.goto("/?q=music%20%26%20%3Cb%3Eplayer%3C/b%3E#")
    expect_search(page, site, "music & <b>player</b>")


def status(page: Page) -> Locator:
    return page.get_by_role("status")


def again(page: Page) -> Locator:
    return page.get_by_role("button", name="Try again")


@pytest.mark.usefixtures("failing")
def test_what_the_service_refuses_is_told_in_its_words(page: Page) -> None:
    page.get_by_role("searchbox").fill("x" * 10_001)
    expect(status(page)).to_contain_text("at most 10000 are possible")
    expect(again(page)).to_be_hidden()
    search_for(page, "music")


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize(
    ("answer", "told"),
    [(None, "The service can't be reached."), (BAD_GATEWAY, "The service's answer can't be read (status 502).")],
    ids=["no connection", "a proxy's own page"],
)
def test_no_answer_of_the_service_and_another_try(page: Page, answer: dict[str, Any] | None, told: str) -> None:
    search_for(page, "music")
    page.route("**/search", lambda route: route.fulfill(**answer) if answer else route.abort())
    page.get_by_role("searchbox").fill("player")
    expect(status(page)).to_have_text(told)
    expect(page.locator("li.hit")).to_have_count(0)
    page.unroute("**/search")
    again(page).click()
    expect(page.locator("li.hit")).to_have_count(10)
    expect(again(page)).to_be_hidden()


def test_a_busy_service_and_another_try(browser: Browser, tiny_bundle: Bundle) -> None:
    """One request is worked on and none may wait; the place is taken as long as `admission` is entered here."""
    settings = Settings(deadline_ms=60_000, warm_up_queries=1, search_threads=1, max_waiting=0)
    with warm(tiny_bundle, settings) as engine:
        app = create_app(engine)
        with live(app) as url, page_of(browser, url) as page:
            search_for(page, "music")
            with app.state.admission.enter():
                page.get_by_role("searchbox").fill("player")
                expect(status(page)).to_contain_text("requests wait already")
                expect(page.locator("li.hit")).to_have_count(0)
            again(page).click()
            expect(page.locator("li.hit")).to_have_count(10)


def test_the_first_search_waits_for_what_is_served(browser: Browser, site: str) -> None:
    """A link opened while the service is away is searched for on the next try, as it stands."""
    page = browser.new_page()
    page.route("**/info", lambda route: route.abort())
    page.goto(f"{site}/#q=music&mode=sparse")
    expect(status(page)).to_have_text("The service can't be reached.")
    page.unroute("**/info")
    again(page).click()
    expect(page.locator("li.hit").first).to_be_visible()
    expect(page.get_by_label("Sparse", exact=True)).to_be_checked()
    page.close()


def test_a_leg_that_did_not_answer_is_told(browser: Browser, tiny_bundle: Bundle) -> None:
    with warm(tiny_bundle, Settings(deadline_ms=60_000, warm_up_queries=1, watch_s=0)) as engine:
        engine.parts.backends.legs["sparse"] = FailingLeg(engine.parts.backends.legs["sparse"])
        with live(create_app(engine)) as url, page_of(browser, url) as page:
            search_for(page, "music")
            expect(status(page)).to_contain_text("Without the sparse leg, which did not answer.")
            expect(page.locator("li.hit")).to_have_count(10)
