"""Hits on the page, held against what the API answers: pages of them, and what scores are made of."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from lightretriever.artifacts.bundle.reader import Bundle
from tests.service.browsing import answer_of, asked, more, page_of, search_for, serious, shown_ids
from tests.service.live import live_bundles
from tests.support.asking import ids
from tests.support.tiny import make_tiny_bundle

pytestmark = pytest.mark.slow

QUERY = "play music from the terminal"


def test_more_appends_hits_in_the_order_of_the_api_until_all_are_there(page: Page, site: str) -> None:
    hits = page.locator("li.hit")
    for mode in ("Hybrid", "Dense", "Sparse"):
        page.get_by_label(mode, exact=True).check()
        search_for(page, f"{QUERY} {mode}")  # which begins with its first page
        whole = answer_of(site, query=f"{QUERY} {mode}", mode=mode.lower(), k=100)
        total = whole["candidates"]
        assert len(whole["hits"]) == total > 20
        for number in range(10, total, 10):
            expect(hits).to_have_count(number)
            assert shown_ids(page) == ids(whole)[:number]
            expect(page.get_by_role("status")).to_contain_text(f"{number} of {total} candidates, ranked in")
            with page.expect_response("**/search") as caught:
                more(page).click()
            body = asked(caught.value.request)
            assert body["k"] == min(number + 10, 100)
            expect(hits).to_have_count(min(number + 10, total))
            expect(hits.nth(number)).to_be_focused()
        assert shown_ids(page) == ids(whole)
        ranks = [text.strip() for text in page.locator(".hit .rank").all_inner_texts()]
        assert ranks == [str(rank) for rank in range(1, total + 1)]
        expect(page.locator("li.hit .why")).to_have_count(total)
        expect(more(page)).to_be_hidden()


@pytest.mark.parametrize("limit", [15, 4])
def test_no_more_is_asked_for_than_the_service_lists(browser: Browser, tiny_path: Path, limit: int) -> None:
    with live_bundles(tiny_path, max_candidates=limit) as url, page_of(browser, url) as page:
        search_for(page, QUERY)
        whole = answer_of(url, query=QUERY, k=limit)
        assert whole["candidates"] > limit
        if limit > 10:
            more(page).click()
        expect(page.locator("li.hit")).to_have_count(limit)
        assert shown_ids(page) == ids(whole)
        expect(page.get_by_role("status")).to_contain_text(f"{limit} of {whole['candidates']} candidates, ranked in")
        expect(more(page)).to_be_hidden()


def word_of(hit: Locator, word: str) -> Locator:
    """The row of a word in the table of reasons."""
    named = hit.page.locator("th", has_text=re.compile(rf"^{word}(\W|$)"))
    return hit.locator(".why tbody tr").filter(has=named)


def shown_shares(row: Locator) -> list[str]:
    return row.locator("td b").all_inner_texts()


def test_a_hit_says_what_its_scores_are_made_of(page: Page, site: str) -> None:
    search_for(page, QUERY)
    hits, marked = answer_of(site, query=QUERY, explain=True)["hits"], 0
    for item, each in zip(page.locator("li.hit").all(), hits, strict=True):
        parts = item.locator(".bar").first.locator("span")
        widths = parts.evaluate_all("parts => parts.map(part => parseFloat(part.style.width))")
        added = each["explanation"]["fusion"]
        assert widths == pytest.approx(
            [100 * (added.get(leg) or 0) / hits[0]["score"] for leg in ("dense", "sparse")], abs=0.01
        )
        by_meaning = sum(word["added"] for word in each["explanation"]["words"])
        expect(item.locator(".meaning")).to_have_count(by_meaning)
        marked += by_meaning
    assert marked
    hit = page.locator("li.hit").first
    expect(hit.locator("table")).to_be_hidden()
    hit.get_by_text("Why this hit?").click()
    explanation = hits[0]["explanation"]
    words = {word["word"]: word for word in explanation["words"]}
    rows = hit.locator(".why tbody tr")
    expect(rows).to_have_count(len(words))
    for row in rows.all():
        word = words[row.locator("th").inner_text().partition("\n")[0].partition(", added")[0]]
        dense, sparse = map(float, shown_shares(row))
        assert abs(dense - word["dense"]) < 0.001
        assert abs(sparse - word["sparse"]) < 0.51
    added = explanation["fusion"]
    expect(hit.locator(".why")).to_contain_text(
        f"{added['dense']:.3f} of the dense leg + {added['sparse']:.3f} of the sparse leg"
    )
    expect(hit.locator(".why")).to_contain_text(f"have {round(100 * explanation['coverage'])} % of the query's terms.")
    assert serious(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_words_are_explained_where_the_terms_are_words(browser: Browser, meaningful_bundle: Bundle) -> None:
    with live_bundles(meaningful_bundle.path) as address, page_of(browser, address) as page:
        search_for(page, "the mended tyres of a bicycle")
        hit = page.locator("li.hit").first
        hit.get_by_text("Why this hit?").click()
        expect(hit.locator(".why")).to_contain_text("have 100 % of the query's terms.")
        assert shown_shares(word_of(hit, "the"))[1] == "–"  # a stop word
        search_for(page, "honey, brakes and bicycle")  # in the order of the API
        hit.get_by_text("Why this hit?").click()
        expect(hit.locator(".why tbody th")).to_have_text(["honey", "brakes", "and", "bicycle", ","])


def test_a_bundle_without_a_dense_leg(page: Page, tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "sparse", vocabulary="words", dense=False)
    with live_bundles(bundle.path) as address:
        page.goto(address)
        expect(page.locator("#examples a").first).to_be_visible()
        page.goto(f"{address}/#q={QUERY}&mode=dense")
        page.reload()
        expect(page.locator("li.hit")).to_have_count(10)
        expect(page.locator("#modes")).to_be_hidden()
        hit = page.locator("li.hit").first
        assert "Dense" not in hit.inner_text()
        hit.get_by_text("Why this hit?").click()
        expect(hit.locator(".why thead th")).to_have_text(["Word", "Adds to the sparse score"])
