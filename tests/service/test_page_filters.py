"""Filters and facets on the page, held against what the API answers itself; in a real browser."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from lightretriever.artifacts.documents.fields import FieldKind
from tests.service.browsing import ATTACK, answer_of, asked, more, page_of, search_for, serious, shown_ids
from tests.service.live import live_bundles
from tests.service.process import flip
from tests.support.asking import ids
from tests.support.tiny import TinyDocument, make_tiny_bundle, tiny_documents
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

COUNT, CANDIDATES, QUERY = 90, 30, "play music from the terminal"
FIELDS: dict[str, FieldKind] = {"source": "keyword", "tags": "keyword", "share": "number", "released": "date"}
WIKI, WIKI_NEWS = {"field": "source", "in": ["wiki"]}, {"field": "source", "in": ["wiki", "news"]}


def declared() -> Iterator[TinyDocument]:
    """Documents with declared fields, some of which they may lack; one value of `tags` is hostile."""
    for number, one in enumerate(tiny_documents(COUNT)):
        tags = [f"tag {number % 13}", ATTACK if number % 7 == 0 else "common"]
        more: dict[str, Any] = {"share": number - 20.5, "tags": tags}
        more |= {"source": ["wiki", "news", "web"][number % 3]} if number % 4 else {}
        more |= {"released": f"20{10 + number % 10}-06-15T12:00:00Z"} if number % 5 else {}
        yield replace(one, more=more)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Fewer candidates than documents, so that counts over the candidates are not those over the corpus."""
    bundle = make_tiny_bundle(tmp_path_factory.mktemp("declared") / "bundle", documents=list(declared()), fields=FIELDS)
    with live_bundles(bundle.path, max_candidates=CANDIDATES) as url:
        yield url


def group(page: Page, field: str) -> Locator:
    return page.get_by_role("group", name=field.capitalize(), exact=True)


def value(page: Page, field: str, name: str) -> Locator:
    return group(page, field).locator(".value").filter(has=page.get_by_text(name, exact=True)).get_by_role("checkbox")


def counts(page: Page, field: str) -> list[tuple[str, int]]:
    """The values of a field with their counts, as they stand on the page."""
    values = group(page, field).locator(".value")
    names = values.locator(".name").all_text_contents()
    numbers = values.locator(".count").evaluate_all("all => all.map(one => Number(one.firstChild.data))")
    return list(zip(names, numbers, strict=True))


def told(site: str, field: str, *conditions: dict[str, Any]) -> list[tuple[str, int]]:
    """The counts of a field as the API gives them under some conditions."""
    answer = answer_of(site, query=QUERY, facets=[field], **among(*conditions))
    return [(one["value"], one["count"]) for one in answer["facets"][field]]


def among(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"filter": {"and": list(conditions)}} if conditions else {}


def expect_hits(page: Page, site: str, *conditions: dict[str, Any]) -> None:
    """The page shows what the API finds under these conditions."""
    answer = answer_of(site, query=QUERY, **among(*conditions))
    expect(page.get_by_role("status")).to_contain_text(
        f"{len(answer['hits'])} of {answer['candidates']} candidates, ranked in"
    )
    wait_until(lambda: shown_ids(page) == ids(answer))  # the hits before may have been as many


def show_all(page: Page) -> None:
    while more(page).is_visible():
        before = page.locator("li.hit").count()
        more(page).click()
        expect(page.locator("li.hit")).not_to_have_count(before)


def clear(page: Page) -> Locator:
    return page.get_by_role("button", name="Clear filters")


def unfold(page: Page) -> Locator:
    return page.locator("#filters > summary")


def toggle(page: Page, field: str, name: str) -> None:
    with page.expect_response(re.compile("/search")):
        value(page, field, name).click()


def test_chosen_values_filter_every_page_and_counts_follow(page: Page, site: str) -> None:
    search_for(page, QUERY)
    assert counts(page, "source") == told(site, "source")
    tags = told(site, "tags")
    assert counts(page, "tags") == tags
    assert ATTACK in dict(tags)
    with page.expect_response("**/search/batch") as caught:
        value(page, "tags", ATTACK).check()
    assert asked(caught.value.request)["filter"] == {"and": [{"field": "tags", "in": [ATTACK]}]}
    expect(value(page, "tags", ATTACK)).to_be_checked()
    assert page.locator("#filters :is(img, script)").count() == 0
    assert page.title() == "LightRetriever Search"
    clear(page).click()
    expect_hits(page, site)
    for name in ("news", "wiki"):  # the keyboard keeps its place when counts change
        value(page, "source", name).focus()
        with page.expect_response("**/search/batch"):
            page.keyboard.press("Space")
        expect(value(page, "source", name)).to_be_checked()
        expect(value(page, "source", name)).to_be_focused()
    tag = {"field": "tags", "in": ["common"]}
    toggle(page, "source", "news")
    expect_hits(page, site, WIKI)
    assert counts(page, "tags") == told(site, "tags", WIKI)
    # What another value of the same field would bring: counted without this field's condition.
    assert counts(page, "source") == told(site, "source")
    whole = answer_of(site, query=QUERY, k=CANDIDATES, **among(WIKI))
    assert len(whole["hits"]) > 10
    show_all(page)
    assert shown_ids(page) == ids(whole)
    toggle(page, "source", "news")
    expect_hits(page, site, WIKI_NEWS)
    assert counts(page, "tags") == told(site, "tags", WIKI_NEWS)
    toggle(page, "tags", "common")
    expect_hits(page, site, WIKI_NEWS, tag)
    assert counts(page, "source") == told(site, "source", tag)
    assert counts(page, "tags") == told(site, "tags", WIKI_NEWS)
    toggle(page, "source", "wiki")
    toggle(page, "source", "news")
    expect_hits(page, site, tag)


def test_filters_list_documents_without_a_query(page: Page, site: str) -> None:
    status, welcome = page.get_by_role("status"), page.get_by_text("Type a question or a few words")
    box, counted = page.get_by_role("searchbox", name="Search"), page.locator("#counted")
    expect(page.locator("#filters")).to_be_hidden()
    search_for(page, QUERY)
    expect(counted).to_have_text("Counted among the candidates of this search.")
    toggle(page, "source", "wiki")
    with page.expect_response(lambda response: "query" not in asked(response.request)):
        box.fill("")
    listed = answer_of(site, k=CANDIDATES, **among(WIKI), facets=["tags"])
    expect(status).to_contain_text(f"10 of {listed['total']} documents, listed in")
    expect(counted).to_have_text("Counted among all documents that are listed.")
    expect(welcome).to_be_hidden()
    assert shown_ids(page) == ids(listed)[:10]
    assert counts(page, "tags") == [(one["value"], one["count"]) for one in listed["facets"]["tags"]]
    having = answer_of(site, filter={"field": "source", "exists": True}, facets=["source"])
    assert counts(page, "source") == [(one["value"], one["count"]) for one in having["facets"]["source"]]
    show_all(page)
    assert shown_ids(page) == ids(listed)
    page.reload()
    expect(status).to_contain_text("documents, listed in")
    clear(page).click()
    expect(welcome).to_be_visible()
    expect(page.locator("li.hit")).to_have_count(0)
    expect(status).to_be_empty()
    page.route("**/search", lambda route: route.abort())
    page.reload()
    box.fill(QUERY)
    expect(status).to_have_text("The service can't be reached.")
    expect(group(page, "source")).to_be_hidden()  # there are no values, and so no heading of values
    expect(counted).to_be_hidden()
    page.unroute("**/search")
    page.get_by_role("button", name="Try again").click()
    expect(group(page, "source")).to_be_visible()
    expect(counted).to_be_visible()


def test_bounds_of_numbers_and_dates(page: Page, site: str) -> None:
    """A date as the upper bound means all of that day; the documents are of noon."""
    search_for(page, QUERY)
    for field, typed, condition in (
        ("share", {"from": "-3"}, {"gte": -3}),
        ("share", {"to": "12.5"}, {"lte": 12.5}),
        ("share", {"from": " 1e1 ", "to": "4E1"}, {"gte": 10, "lte": 40}),
        ("released", {"from": "2015-06-15"}, {"gte": "2015-06-15"}),
        ("released", {"to": "2015-06-15"}, {"lt": "2015-06-16"}),
        ("released", {"from": "2012-06-16", "to": "2016-06-15"}, {"gt": "2012-06-16", "lt": "2016-06-16"}),
    ):
        for end, text in typed.items():
            group(page, field).get_by_label(end).fill(text)
            group(page, field).get_by_label(end).blur()
        answer = answer_of(site, query=QUERY, **among({"field": field, **condition}))
        assert answer["candidates"]
        expect(unfold(page)).to_have_text("Filters (1)")
        expect_hits(page, site, {"field": field, **condition})
        clear(page).click()
        expect_hits(page, site)


def test_filters_that_leave_nothing_say_so_and_are_cleared_at_once(page: Page, site: str) -> None:
    search_for(page, QUERY)
    expect(clear(page)).to_be_hidden()
    toggle(page, "source", "web")
    web = {"field": "source", "in": ["web"]}
    expect_hits(page, site, web)
    least = group(page, "share").get_by_label("from")
    least.fill("1000")
    least.press("Enter")
    expect(page.get_by_role("status")).to_have_text("Nothing found with these filters.")
    expect(value(page, "source", "web")).to_be_checked()
    assert counts(page, "source") == [("web", 0)]
    expect(group(page, "tags")).to_be_hidden()
    least.fill("")
    least.press("Enter")
    expect_hits(page, site, web)
    least.fill("5")
    group(page, "released").get_by_label("to").fill("2014-01-01")
    expect(unfold(page)).to_have_text("Filters (3)")
    clear(page).click()
    expect_hits(page, site)
    assert counts(page, "source") == told(site, "source")
    expect(page.locator(".value :checked")).to_have_count(0)
    for box in page.locator(".bound input").all():
        expect(box).to_have_value("")
    expect(clear(page)).to_be_hidden()


def test_a_link_has_the_filters_and_the_history_too(page: Page, browser: Browser, site: str) -> None:
    search_for(page, QUERY)
    toggle(page, "source", "wiki")
    toggle(page, "source", "news")
    group(page, "share").get_by_label("from").fill("-2.5")
    group(page, "released").get_by_label("to").fill("2017-01-01")
    conditions = (WIKI_NEWS, {"field": "share", "gte": -2.5}, {"field": "released", "lt": "2017-01-02"})
    expect(unfold(page)).to_have_text("Filters (3)")
    expect_hits(page, site, *conditions)
    with page_of(browser, site, page.url) as other:
        expect_hits(other, site, *conditions)
        expect(value(other, "source", "wiki")).to_be_checked()
        expect(value(other, "source", "web")).not_to_be_checked()
        expect(group(other, "share").get_by_label("from")).to_have_value("-2.5")
        expect(group(other, "released").get_by_label("to")).to_have_value("2017-01-01")
    search_for(page, "editor")
    clear(page).click()
    expect(page.locator(".value :checked")).to_have_count(0)
    page.go_back()
    expect(value(page, "source", "wiki")).to_be_checked()
    expect(page.get_by_role("searchbox")).to_have_value("editor")
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value(QUERY)
    expect_hits(page, site, *conditions)


def test_another_bundle_with_other_fields_takes_over(browser: Browser, tmp_path: Path) -> None:
    """The open page learns what there is to filter by when a search is refused."""
    make_tiny_bundle(tmp_path / "one", documents=list(declared()), fields=FIELDS)
    make_tiny_bundle(tmp_path / "two", documents=list(declared()))
    current = tmp_path / "current"
    current.symlink_to("one")
    with live_bundles(current, watch_s=0.2) as url, page_of(browser, url) as page:
        search_for(page, QUERY)
        expect(group(page, "source")).to_be_visible()
        flip(current, tmp_path / "two")
        while httpx2.get(f"{url}/info").json()["filters"]:
            page.wait_for_timeout(100)
        page.get_by_role("searchbox").fill("chess")
        expect(page.get_by_role("status")).to_contain_text("only declared keyword fields are counted")
        search_for(page, "chess games")
        expect(page.locator("li.hit")).to_have_count(10)
        expect(page.locator("#filters")).to_be_hidden()


def test_a_phone_unfolds_the_filters(page: Page, site: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.reload()
    search_for(page, QUERY)
    expect(group(page, "source")).to_be_hidden()
    unfold(page).click()
    toggle(page, "source", "wiki")
    expect_hits(page, site, WIKI)
    expect(unfold(page)).to_have_text("Filters (1)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert serious(page) == []
