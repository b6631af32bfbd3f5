"""What the page says when the service refuses, is busy or gone; and that it goes on afterwards."""

from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.http.app import create_app
from lightretriever.service.settings import Settings
from tests.service.browsing import page_of, search_for
from tests.service.live import live, warm
from tests.support.legs import FailingLeg

pytestmark = pytest.mark.slow

BAD_GATEWAY = {"status": 502, "content_type": "text/html", "body": "<h1>Bad</h1>"}


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
    [
        (None, "The service can't be reached."),
        (BAD_GATEWAY, "The service's answer can't be read (status 502)."),
    ],
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
