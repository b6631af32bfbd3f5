"""What the page says of a hit, how it weighs the legs, and how it puts them side by side; in a real browser."""

import json
import os
import re
from pathlib import Path
from typing import Any

import httpx2
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.service.browsing import search_for

QUERY = "play music from the terminal"
SERIOUS = {"serious", "critical"}


def asked(response_request: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(response_request.post_data or "{}")
    return body


def test_a_hit_says_what_its_scores_are_made_of(page: Page, site: str, messages: list[str]) -> None:
    search_for(page, QUERY)
    hit = page.locator("li.hit").first
    expect(hit.locator("table")).to_be_hidden()
    hit.get_by_text("Why this hit?").click()
    told = httpx2.post(f"{site}/search", json={"query": QUERY, "explain": True}, timeout=60).json()["hits"][0]
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
    name = (hit.locator(".id").inner_text()).split(" · ")[0]
    terms = httpx2.get(f"{site}/terms/{name}", timeout=60).json()["terms"]
    expect(hit.locator(".terms li")).to_have_count(len(terms))
    expect(hit.locator(".terms li.added")).to_have_count(sum(not term["in_text"] for term in terms))
    assert messages == []


def test_words_of_the_query_are_marked_and_nothing_else(page: Page) -> None:
    search_for(page, "MUSIC")
    marks = page.locator("li.hit p mark").all_inner_texts()
    assert marks
    assert {mark.lower() for mark in marks} == {"music"}


def test_a_long_text_begins_where_it_matters(page: Page) -> None:
    words = page.evaluate(
        """() => {
            const element = document.createElement("p");
            marked(element, "filler ".repeat(300) + "the needle is here. " + "after ".repeat(200), "Needle");
            return [element.textContent, element.querySelectorAll("mark").length];
        }"""
    )
    assert words[1] == 1
    assert "needle" in words[0]
    assert words[0].startswith("…")
    assert len(words[0]) < 330


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
        ranked = [hit["id"] for hit in caught.value.json()["hits"]]
        alone = page.request.post("/search", data={"query": QUERY, "mode": mode}).json()
        assert ranked == [hit["id"] for hit in alone["hits"]]
    other = browser.new_page()
    other.goto(page.url)
    expect(other.get_by_label("Weight of the dense leg")).to_have_value("0")
    other.close()
    page.get_by_label("Dense only").check()
    expect(slider).to_be_hidden()


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
        answer = httpx2.post(f"{site}/search", json={"query": QUERY, "mode": name.lower()}, timeout=60).json()
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


def test_axe_finds_nothing_serious(page: Page) -> None:
    search_for(page, QUERY)
    page.locator("li.hit").first.get_by_text("Why this hit?").click()
    page.locator("li.hit").first.get_by_role("button", name="All terms").click()
    expect(page.locator(".terms")).to_be_visible()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
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
