"""The address of a search: a link has all of it, and back and forward lead through the searches made."""

import pytest
from playwright.sync_api import Page, expect

from tests.service.browsing import answer_of, search_for, shown_ids
from tests.support.asking import ids

pytestmark = pytest.mark.slow


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
