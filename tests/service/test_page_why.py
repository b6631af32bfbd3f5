"""What the page says of a hit, how it weighs the legs, and how it puts them side by side; in a real browser."""

import os
import re
from pathlib import Path

import httpx2
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.service.browsing import answer_of, asked, ids, search_for

pytestmark = pytest.mark.slow

QUERY = "play music from the terminal"
SERIOUS = {"serious", "critical"}


def test_a_hit_says_what_its_scores_are_made_of(page: Page, site: str, messages: list[str]) -> None:
    search_for(page, QUERY)
    hit = page.locator("li.hit").first
    expect(hit.locator("table")).to_be_hidden()
    hit.get_by_text("Why this hit?").click()
    told = answer_of(site, query=QUERY, explain=True)["hits"][0]
    tokens = {re.sub("^Ġ", "", token["token"]): token for token in told["explanation"]["tokens"]}
    rows = hit.locator(".why tbody tr")
    expect(rows).to_have_count(len(tokens))
    for row in rows.all():
        token = tokens[row.locator("th").inner_text().partition(" × ")[0]]
        dense, sparse = (float(cell) for cell in row.locator("b").all_inner_texts())
        assert abs(dense - token["dense"]) < 0.001
        assert abs(sparse - token["sparse"]) < 0.51
    added = told["explanation"]["fusion"]
    expect(hit.locator(".why p")).to_contain_text(
        f"{added['dense']:.3f} of the dense leg + {added['sparse']:.3f} of the sparse leg"
    )
    assert messages == []


def test_all_terms_of_a_document_are_shown_on_demand(page: Page, site: str, messages: list[str]) -> None:
    search_for(page, QUERY)
    hit = page.locator("li.hit").first
    hit.get_by_text("Why this hit?").click()
    hit.get_by_role("button", name="All terms of this document").click()
    terms = httpx2.get(f"{site}/terms/{hit.get_attribute('data-id')}", timeout=60).json()["terms"]
    expect(hit.locator(".terms li")).to_have_count(len(terms))
    expect(hit.locator(".terms li.added")).to_have_count(sum(not term["in_text"] for term in terms))
    assert messages == []


def test_the_bar_of_a_hit_is_made_of_what_the_legs_add(page: Page, site: str) -> None:
    search_for(page, QUERY)
    hits = answer_of(site, query=QUERY, explain=True)["hits"]
    for item, hit in zip(page.locator("li.hit").all(), hits, strict=True):
        widths = (
            item.locator(".bar")
            .first.locator("span")
            .evaluate_all("parts => parts.map(part => parseFloat(part.style.width))")
        )
        added = hit["explanation"]["fusion"]
        assert widths == pytest.approx(
            [100 * (added.get(leg) or 0) / hits[0]["score"] for leg in ("dense", "sparse", "bm25")], abs=0.01
        )


def test_the_slider_weighs_the_legs_at_once(page: Page, browser: Browser) -> None:
    search_for(page, QUERY)
    slider = page.get_by_label("Weight of the dense leg")
    expect(slider).to_have_value("70")
    for value, mode in (("100", "dense"), ("0", "sparse")):
        with page.expect_response("**/search") as caught:
            slider.fill(value)
        assert asked(caught.value.request)["fusion"]["weights"] == {
            "dense": int(value) / 100,
            "sparse": 1 - int(value) / 100,
        }
        alone = page.request.post("/search", data={"query": QUERY, "mode": mode}).json()
        assert ids(caught.value.json()) == ids(alone)
    other = browser.new_page()
    other.goto(page.url)
    expect(other.get_by_label("Weight of the dense leg")).to_have_value("0")
    other.close()
    page.get_by_label("Dense", exact=True).check()
    expect(slider).to_be_hidden()


def test_the_bundles_own_weights_come_back(page: Page) -> None:
    search_for(page, QUERY)
    reset = page.get_by_role("button", name="Reset the weights")
    expect(reset).to_be_hidden()
    slider = page.get_by_label("Weight of the dense leg")
    slider.press("Home")
    expect(page.locator("#balance")).to_contain_text("Dense 0 %")
    expect(page.locator("#balance")).to_contain_text("Sparse 100 %")
    # Searches of the slider may be under way.
    with page.expect_response(lambda response: "fusion" not in asked(response.request)):
        reset.click()
    expect(slider).to_have_value("70")
    expect(reset).to_be_hidden()


def test_the_bundles_own_weights_hold_until_the_slider_is_moved(page: Page) -> None:
    with page.expect_response("**/search") as caught:
        page.get_by_role("searchbox").fill("music")
    assert "fusion" not in asked(caught.value.request)


def test_legs_side_by_side(page: Page, site: str, messages: list[str]) -> None:
    page.get_by_label("Side by side").check()
    with page.expect_response("**/search/batch"):
        page.get_by_role("searchbox").fill(QUERY)
    for name in ("Dense", "Sparse", "Hybrid"):
        column = page.get_by_role("list", name=f"{name} hits")
        answer = answer_of(site, query=QUERY, mode=name.lower())
        expect(column.get_by_role("listitem")).to_have_count(len(answer["hits"]))
        for item, hit in zip(column.get_by_role("listitem").all(), answer["hits"], strict=True):
            expect(item).to_contain_text(f"{hit['rank']} · {hit['fields']['title'] or hit['id']}")
    expect(page.get_by_role("status")).to_contain_text("Three searches in")
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / "page-compare.png", full_page=True)
    page.get_by_label("Hybrid", exact=True).check()
    expect(page.locator("li.hit")).to_have_count(10)
    expect(page.locator("#compare")).to_be_hidden()
    assert messages == []


def test_bm25_has_a_column_where_the_bundle_has_the_words(browser: Browser, url: str, site: str) -> None:
    for address, columns in ((url, ["Dense", "Sparse", "Hybrid", "BM25"]), (site, ["Dense", "Sparse", "Hybrid"])):
        page = browser.new_page(base_url=address)
        page.goto(f"/#q={QUERY}&mode=compare")
        expect(page.locator("#compare h2")).to_have_text(columns)
        for name in columns:
            shown = page.get_by_role("list", name=f"{name} hits").get_by_role("listitem")
            found = shown.evaluate_all("items => items.map(item => item.dataset.id)")
            assert found == ids(answer_of(address, query=QUERY, mode=name.lower()))
        said = {3: "Three", 4: "Four"}[len(columns)]
        expect(page.get_by_role("status")).to_contain_text(f"{said} searches in")
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"page-{len(columns)}-columns.png", full_page=True)
        page.close()


def test_a_document_that_is_pointed_at_lights_up_in_every_column(page: Page) -> None:
    page.get_by_label("Side by side").check()
    page.get_by_role("searchbox").fill(QUERY)
    first = page.get_by_role("list", name="Hybrid hits").get_by_role("listitem").first
    name = first.get_attribute("data-id")
    same = page.locator(f"#compare li[data-id='{name}']")
    assert same.count() > 1
    first.hover()
    expect(page.locator("#compare li.same")).to_have_count(same.count())
    page.get_by_role("searchbox").hover()
    expect(page.locator("#compare li.same")).to_have_count(0)


def test_axe_finds_nothing_serious(page: Page) -> None:
    search_for(page, QUERY)
    page.locator("li.hit").first.get_by_text("Why this hit?").click()
    page.locator("li.hit").first.get_by_role("button", name="All terms").click()
    expect(page.locator(".terms")).to_be_visible()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="light" if scheme == "light" else "dark", reduced_motion="reduce")
        found = Axe().run(page).response["violations"]
        assert [one["id"] for one in found if one["impact"] in SERIOUS] == []
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / "page-why.png", full_page=True)
    page.get_by_label("Side by side").check()
    expect(page.get_by_role("list", name="Dense hits")).to_be_visible()
    assert [one["id"] for one in Axe().run(page).response["violations"] if one["impact"] in SERIOUS] == []


def test_a_phone_needs_no_scrolling_sideways(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    search_for(page, QUERY)
    page.locator("li.hit").first.get_by_text("Why this hit?").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_label("Side by side").check()
    expect(page.get_by_role("list", name="Dense hits")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
