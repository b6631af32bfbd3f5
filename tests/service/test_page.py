"""The pages in a real browser, headless Chromium, on a real server."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from lightretriever.service.http.routes import router
from tests.service.browsing import page_of, search_for
from tests.service.live import live_bundles
from tests.support.keys import keys_file
from tests.support.written import ENTRIES, READER

pytestmark = pytest.mark.slow


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


def send_a_search(page: Page) -> None:
    """On the page of the documentation."""
    page.locator("#routes > details").filter(has_text="POST/search Search").first.locator("summary").click()
    page.get_by_role("button", name="Send").first.click()
    expect(page.locator("pre", has_text="200\n{").first).to_be_visible()


def test_the_documentation_page_lists_routes_models_and_errors(page: Page) -> None:
    page.goto("/docs#error-invalid_request")
    expect(page.get_by_role("heading", level=1)).to_contain_text("LightRetriever Search")
    expect(page.locator("#error-invalid_request")).to_contain_text("422")
    assert page.locator("#routes > details").count() == len(router.routes)
    send_a_search(page)


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
        page.goto("/docs")
        send_a_search(page)
        assert READER not in page.content()
        with page_of(browser, url, "/#q=music") as other:  # another tab has no key
            expect(other.get_by_role("status")).to_contain_text("Send your API key")


def test_a_key_that_is_gone_is_asked_for_anew(browser: Browser, tiny_path: Path, tmp_path: Path) -> None:
    with (
        live_bundles(tiny_path, api_keys_file=keys_file(tmp_path, *ENTRIES)) as url,
        page_of(browser, url, "/#q=music") as page,
    ):
        asked = page.get_by_label("This service asks for an API key", exact=False)
        for button in ("More hits", "All terms of this document"):
            asked.fill(READER)
            asked.press("Enter")
            expect(page.locator("li.hit")).to_have_count(10)
            expect(asked).to_be_hidden()
            page.evaluate("sessionStorage.clear()")
            if button != "More hits":
                page.get_by_text("Why this hit?").first.click()
            page.get_by_role("button", name=button).first.click()
            expect(page.get_by_role("status")).to_contain_text("Send your API key")
            expect(page.locator("li.hit")).to_have_count(10)
            expect(asked).to_be_visible()


def test_nothing_is_loaded_from_elsewhere(page: Page, site: str) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    for path in ("/", "/docs"):
        page.goto(path, wait_until="networkidle")
    assert requested.count(f"{site}/") == 1
    assert {address for address in requested if not address.startswith((site, "data:"))} == set()
