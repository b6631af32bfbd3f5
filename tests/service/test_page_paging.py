"""Pages of hits on the page, held against the API's own order; and the keys that lead through them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.service.browsing import answer_of, asked, page_of, search_for, shown_ids
from tests.service.live import live_bundles
from tests.support.asking import ids

pytestmark = pytest.mark.slow

QUERY = "play music from the terminal"


def more(page: Page) -> Locator:
    return page.get_by_role("button", name="More hits")


def shown(page: Page) -> Locator:
    return page.locator("#shown")


@pytest.mark.parametrize("mode", ["Hybrid", "Dense", "Sparse"])
def test_more_appends_hits_in_the_order_of_the_api_until_all_are_there(page: Page, site: str, mode: str) -> None:
    page.get_by_label(mode, exact=True).check()
    search_for(page, QUERY)
    whole = answer_of(site, query=QUERY, mode=mode.lower(), k=100)
    total = whole["candidates"]
    assert len(whole["hits"]) == total > 20
    for number in range(10, total, 10):
        assert shown_ids(page) == ids(whole)[:number]
        expect(shown(page)).to_have_text(f"{number} of {total} candidates are shown.")
        expect(page.get_by_role("status")).to_contain_text(f"{number} of {total} candidates, ranked in")
        with page.expect_response("**/search") as caught:
            more(page).click()
        body = asked(caught.value.request)
        assert (body["offset"], body["k"]) == (number, min(10, total - number))
        expect(page.locator("li.hit")).to_have_count(min(number + 10, total))
    assert shown_ids(page) == ids(whole)
    ranks = [text.strip() for text in page.locator(".hit .rank").all_inner_texts()]
    assert ranks == [str(rank) for rank in range(1, total + 1)]
    expect(page.locator("li.hit .why")).to_have_count(total)
    expect(shown(page)).to_have_text(f"All {total} candidates are shown.")
    expect(more(page)).to_be_hidden()


def test_no_more_is_asked_for_than_the_service_lists(browser: Browser, tiny_path: Path) -> None:
    with live_bundles(tiny_path, max_candidates=15) as url, page_of(browser, url) as page:
        search_for(page, QUERY)
        whole = answer_of(url, query=QUERY, k=15)
        assert whole["candidates"] > 15
        more(page).click()
        expect(page.locator("li.hit")).to_have_count(15)
        assert shown_ids(page) == ids(whole)
        expect(shown(page)).to_have_text(
            f"The first 15 of {whole['candidates']} candidates are shown, as many as a search lists."
        )
        expect(more(page)).to_be_hidden()


def test_a_service_with_fewer_candidates_than_a_page_has(browser: Browser, tiny_path: Path) -> None:
    with live_bundles(tiny_path, max_candidates=4) as url, page_of(browser, url) as page:
        search_for(page, QUERY)
        assert shown_ids(page) == ids(answer_of(url, query=QUERY, k=4))


def test_another_query_and_another_weight_begin_with_their_first_page(page: Page, site: str) -> None:
    search_for(page, QUERY)
    more(page).click()
    expect(page.locator("li.hit")).to_have_count(20)
    search_for(page, "scientific papers")
    expect(page.locator("li.hit")).to_have_count(10)
    assert shown_ids(page) == ids(answer_of(site, query="scientific papers"))
    more(page).click()
    expect(page.locator("li.hit")).to_have_count(20)
    assert shown_ids(page) == ids(answer_of(site, query="scientific papers", k=20))
    with page.expect_response("**/search"):
        page.get_by_label("Weight of the dense leg").fill("20")
    expect(page.locator("li.hit")).to_have_count(10)
    with page.expect_response("**/search") as caught:
        more(page).click()
    assert asked(caught.value.request)["fusion"]["weights"]["dense"] == 0.2


def test_an_impatient_person_gets_each_page_once(page: Page, site: str) -> None:
    search_for(page, QUERY)
    held: list[Route] = []
    page.route("**/search", lambda route: held.append(route))
    with page.expect_request("**/search"):
        more(page).click()
    more(page).click()
    more(page).click()
    (route,) = held
    route.continue_()
    expect(page.locator("li.hit")).to_have_count(20)
    page.wait_for_timeout(100)
    assert len(held) == 1
    assert shown_ids(page) == ids(answer_of(site, query=QUERY, k=20))


def held_back(page: Page, holds: Callable[[dict[str, Any]], bool]) -> list[Route]:
    """The requests of searches that don't go on by themselves, as they come."""
    held: list[Route] = []
    page.route("**/search", lambda route: held.append(route) if holds(asked(route.request)) else route.continue_())
    return held


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("fails", [False, True])
def test_a_page_asked_for_while_the_next_search_runs_is_dropped(page: Page, site: str, fails: bool) -> None:
    search_for(page, QUERY)
    held = held_back(page, lambda _: len(held) < 2)
    with page.expect_request("**/search"):
        page.get_by_role("searchbox").fill("scientific papers")
    with page.expect_request("**/search"):
        more(page).click()
    search, further = held
    assert asked(further.request)["query"] == QUERY
    search.continue_()
    whole = answer_of(site, query="scientific papers")
    expect(page.locator("li.hit").first).to_have_attribute("data-id", ids(whole)[0])
    told = page.get_by_role("status").inner_text()
    if fails:
        further.abort()
    else:
        with page.expect_response("**/search"):
            further.continue_()
    page.wait_for_timeout(100)
    assert shown_ids(page) == ids(whole)
    assert page.get_by_role("status").inner_text() == told
    expect(shown(page)).to_have_text(f"10 of {whole['candidates']} candidates are shown.")


def test_where_the_ranking_changed_meanwhile_all_is_shown_anew(page: Page, site: str) -> None:
    """As with another version of the bundle: the second page is of another ranking than the first."""
    search_for(page, QUERY)

    def reverse(route: Route) -> None:
        answer = route.fetch()
        body: dict[str, Any] = answer.json()
        if asked(route.request).get("offset"):
            body["candidates"] += 1
        route.fulfill(response=answer, json=body)

    page.route("**/search", reverse)
    more(page).click()
    expect(page.locator("li.hit")).to_have_count(20)
    assert shown_ids(page) == ids(answer_of(site, query=QUERY, k=20))
    expect(page.get_by_role("status")).to_contain_text("The ranking has changed meanwhile.")


@pytest.mark.usefixtures("failing")
def test_hits_stay_when_the_next_page_fails_and_it_can_be_asked_again(page: Page) -> None:
    search_for(page, QUERY)
    page.route("**/search", lambda route: route.abort())
    more(page).click()
    expect(shown(page)).to_have_text("The service can't be reached.")
    expect(page.get_by_role("status")).to_have_text("The service can't be reached.")
    expect(page.locator("li.hit")).to_have_count(10)
    page.unroute("**/search")
    more(page).click()
    expect(page.locator("li.hit")).to_have_count(20)
    expect(shown(page)).to_contain_text("20 of ")


def test_the_keys_lead_through_hits_and_pages_and_unfold_a_hit(page: Page) -> None:
    search_for(page, QUERY)
    hits = page.locator("li.hit")
    for number in range(10):
        page.keyboard.press("ArrowDown")
        expect(hits.nth(number)).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(more(page)).to_be_focused()
    page.keyboard.press("Enter")
    expect(hits).to_have_count(20)
    expect(hits.nth(10)).to_be_focused()
    for number in range(9, -1, -1):
        page.keyboard.press("ArrowUp")
        expect(hits.nth(number)).to_be_focused()
    page.keyboard.press("Enter")
    expect(hits.first.locator(".why table")).to_be_visible()
    page.keyboard.press("Enter")
    expect(hits.first.locator(".why table")).to_be_hidden()
    expect(hits.first).to_be_focused()
    page.keyboard.press("Tab")  # to "More like this"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(hits.first.locator(".why table")).to_be_visible()
    # Within a hit the arrows do what they always do.
    page.keyboard.press("ArrowDown")
    expect(hits.first.locator("summary")).to_be_focused()
    hits.first.focus()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("searchbox")).to_be_focused()


@pytest.mark.parametrize(("width", "height"), [(1100, 500), (360, 780)])
def test_the_search_covers_the_hits_above_the_focused_one(page: Page, width: int, height: int) -> None:
    """Its frame lies below the search, and nothing of the hit before sticks out between them."""
    page.set_viewport_size({"width": width, "height": height})
    search_for(page, QUERY)
    for _ in range(10):
        page.keyboard.press("ArrowDown")
    scrolled = 0
    for _ in range(8):
        before = page.evaluate("scrollY")
        page.keyboard.press("ArrowUp")
        if page.evaluate("scrollY") == before:
            continue  # it was in sight
        scrolled += 1
        search, previous, focused = page.evaluate(
            """[byId("form"), document.activeElement.previousElementSibling, document.activeElement]
            .map((element) => element.getBoundingClientRect()).map(({ top, bottom }) => ({ top, bottom }))"""
        )
        assert previous["bottom"] <= search["bottom"] <= focused["top"] - 4
    assert scrolled > 2


def test_keys_that_compose_a_character_are_not_the_pages(page: Page) -> None:
    """The arrows lead through the suggestions of an input method, and "/" may be part of a character."""
    search_for(page, QUERY)
    box = page.get_by_role("searchbox")
    box.dispatch_event("keydown", {"key": "ArrowDown", "isComposing": True})
    expect(box).to_be_focused()
    box.dispatch_event("keydown", {"key": "ArrowDown"})
    expect(page.locator("li.hit").first).to_be_focused()
