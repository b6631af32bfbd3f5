"""Hits on the page, held against what the API answers: pages of them, the keys that lead through them, what scores
are made of, and the weights of the legs."""

import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from lightretriever.artifacts.bundle.reader import Bundle
from tests.service.browsing import answer_of, asked, held_back, more, page_of, search_for, serious, shown_ids
from tests.service.live import live_bundles
from tests.support.asking import ids
from tests.support.tiny import make_tiny_bundle

pytestmark = pytest.mark.slow

QUERY = "play music from the terminal"


def shown(page: Page) -> Locator:
    return page.locator("#shown")


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
            expect(shown(page)).to_have_text(f"{number} of {total} candidates are shown.")
            expect(page.get_by_role("status")).to_contain_text(f"{number} of {total} candidates, ranked in")
            with page.expect_response("**/search") as caught:
                more(page).click()
            body = asked(caught.value.request)
            assert (body["offset"], body["k"]) == (number, min(10, total - number))
            expect(hits).to_have_count(min(number + 10, total))
        assert shown_ids(page) == ids(whole)
        ranks = [text.strip() for text in page.locator(".hit .rank").all_inner_texts()]
        assert ranks == [str(rank) for rank in range(1, total + 1)]
        expect(page.locator("li.hit .why")).to_have_count(total)
        expect(shown(page)).to_have_text(f"All {total} candidates are shown.")
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
        said = f"The first {limit} of {whole['candidates']} candidates are shown, as many as a search lists."
        expect(shown(page)).to_have_text(said)
        expect(more(page)).to_be_hidden()


def test_each_page_comes_once_and_only_to_the_ranking_it_is_of(page: Page, site: str) -> None:
    hits = page.locator("li.hit")
    search_for(page, QUERY)
    held: list[Route] = held_back(page, lambda _, __: True)
    with page.expect_request("**/search"):
        more(page).click()
    more(page).click()
    more(page).click()
    (route,) = held
    route.continue_()
    expect(hits).to_have_count(20)
    page.wait_for_timeout(100)
    assert len(held) == 1
    assert shown_ids(page) == ids(answer_of(site, query=QUERY, k=20))
    page.unroute("**/search")
    for text, fails in (("scientific papers", False), ("chess games", True)):  # a page of the search before is dropped
        search_for(page, QUERY)
        held = held_back(page, lambda _, count: count < 2)
        with page.expect_request("**/search"):
            page.get_by_role("searchbox").fill(text)
        with page.expect_request("**/search"):
            more(page).click()
        search, further = held
        assert asked(further.request)["query"] == QUERY
        search.continue_()
        whole = answer_of(site, query=text)
        expect(hits.first).to_have_attribute("data-id", ids(whole)[0])
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
        page.unroute("**/search")

    def change(route: Route) -> None:
        answer = route.fetch()
        body: dict[str, Any] = answer.json()
        if asked(route.request).get("offset"):
            body["candidates"] += 1
        route.fulfill(response=answer, json=body)

    search_for(page, QUERY)
    page.route("**/search", change)  # as another version of the bundle may
    with page.expect_response(lambda response: "offset" not in asked(response.request)):  # all begins anew
        more(page).click()
    expect(shown(page)).to_contain_text("10 of ")
    assert shown_ids(page) == ids(answer_of(site, query=QUERY))


def test_the_keys_lead_through_hits_and_pages_and_unfold_a_hit(page: Page) -> None:
    search_for(page, QUERY)
    hits, box = page.locator("li.hit"), page.get_by_role("searchbox")
    box.dispatch_event("keydown", {"key": "ArrowDown", "isComposing": True})  # of an input method
    expect(box).to_be_focused()
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
    expect(hits.first.locator(".why > summary")).to_be_focused()
    hits.first.focus()
    page.keyboard.press("ArrowUp")
    expect(box).to_be_focused()
    for width, height, query in ((1100, 500, "music"), (360, 780, "player")):
        assert_never_covered(page, width, height, query)


def assert_never_covered(page: Page, width: int, height: int, query: str) -> None:
    """Assert that the frame of the focused hit lies below the search, and nothing of the hit before between them."""
    page.set_viewport_size({"width": width, "height": height})
    search_for(page, query)
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


def word_of(hit: Locator, word: str) -> Locator:
    """The row of a word in the table of reasons."""
    named = hit.page.locator("summary", has_text=re.compile(rf"^{word}(\W|$)"))
    return hit.locator(".why tbody tr").filter(has=named)


def shown_shares(row: Locator) -> list[str]:
    return row.locator("td b").all_inner_texts()


def test_a_hit_says_what_its_scores_are_made_of(page: Page, site: str) -> None:
    search_for(page, QUERY)
    hits = answer_of(site, query=QUERY, explain=True)["hits"]
    for item, each in zip(page.locator("li.hit").all(), hits, strict=True):
        parts = item.locator(".bar").first.locator("span")
        widths = parts.evaluate_all("parts => parts.map(part => parseFloat(part.style.width))")
        added = each["explanation"]["fusion"]
        assert widths == pytest.approx(
            [100 * (added.get(leg) or 0) / hits[0]["score"] for leg in ("dense", "sparse")], abs=0.01
        )
    hit = page.locator("li.hit").first
    expect(hit.locator("table")).to_be_hidden()
    hit.get_by_text("Why this hit?").click()
    explanation = hits[0]["explanation"]
    words = {word["word"]: word for word in explanation["words"]}
    rows = hit.locator(".why tbody tr")
    expect(rows).to_have_count(len(words))
    for row in rows.all():
        word = words[row.locator("summary").inner_text().partition("\n")[0].partition(", added")[0]]
        dense, sparse = map(float, shown_shares(row))
        assert abs(dense - word["dense"]) < 0.001
        assert abs(sparse - word["sparse"]) < 0.51
        expect(row.locator(".meaning")).to_have_count(int(word["added"]))
    added = explanation["fusion"]
    expect(hit.locator(".why")).to_contain_text(
        f"{added['dense']:.3f} of the dense leg + {added['sparse']:.3f} of the sparse leg"
    )
    expect(hit.locator(".why")).to_contain_text(f"have {round(100 * explanation['coverage'])} % of the query's terms.")
    button = word_of(hit, "terminal").locator("summary")
    parts = word_of(hit, "terminal").locator("ul")
    expect(parts).to_be_hidden()
    button.press("Enter")
    expect(parts).to_be_visible()
    of_word = (words["terminal"]["tokens"], words["terminal"]["terms"])
    for told, leg in zip(of_word, ("dense", "sparse"), strict=True):
        shares = [float(text) for text in parts.locator(f".{leg} b").all_inner_texts()]
        assert shares == pytest.approx([part[leg] for part in told], abs=0.51 if leg == "sparse" else 0.001)
    button.press("Space")
    expect(parts).to_be_hidden()
    hit.get_by_role("button", name="All terms of this document").click()
    terms = httpx2.get(f"{site}/terms/{hit.get_attribute('data-id')}", timeout=60).json()["terms"]
    expect(hit.locator(".terms li")).to_have_count(len(terms))
    expect(hit.locator(".terms li.added")).to_have_count(sum(not term["in_text"] for term in terms))
    for unfolded in hit.locator(".word summary").all():
        unfolded.click()
    assert serious(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_what_was_added_by_meaning_is_marked(page: Page, site: str) -> None:
    documents = [name for name in ids(answer_of(site, query="music", k=40, candidates=40)) if name.isascii()]
    name, word = next(
        (name, text)
        for name in documents
        if "/" not in name and " " not in name
        for term in httpx2.get(f"{site}/terms/{name}", timeout=60).json()["terms"]
        if not term["in_text"] and (text := term["text"].removeprefix("Ġ")).isalpha() and term["text"][0] == "Ġ"
    )
    search_for(page, word)
    hit = page.locator(f"li.hit[data-id='{name}']")
    while not hit.count():
        more(page).click()
    hit.get_by_text("Why this hit?").click()
    row = hit.locator(".why tbody tr").first
    expect(row.locator("summary")).to_have_text(re.compile(rf"^{word}\W+added by meaning$"))
    row.locator("summary").click()
    expect(row.locator("ul .meaning")).to_have_text("added by meaning")


def test_words_are_explained_where_the_terms_are_words(browser: Browser, meaningful_bundle: Bundle) -> None:
    with live_bundles(meaningful_bundle.path) as address, page_of(browser, address) as page:
        search_for(page, "the mended tyres of a bicycle")
        hit = page.locator("li.hit").first
        hit.get_by_text("Why this hit?").click()
        expect(hit.locator(".why")).to_contain_text("have 100 % of the query's words.")
        row = word_of(hit, "tyres")
        row.locator("summary").click()
        expect(row.locator("ul")).to_contain_text("tyre")
        stop = word_of(hit, "the")
        assert shown_shares(stop)[1] == "–"
        stop.locator("summary").click()
        expect(stop.locator("ul")).to_contain_text("A stop word or a sign, which the leg leaves out.")
        search_for(page, "honey, brakes and bicycle")  # in the order of the API
        hit.get_by_text("Why this hit?").click()
        expect(hit.locator(".word summary")).to_have_text(["honey", "brakes", "and", "bicycle", ","])


def test_a_bundle_without_a_dense_leg(page: Page, tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "sparse", vocabulary="words", dense=False)
    with live_bundles(bundle.path) as address:
        page.goto(address)
        expect(page.locator("#examples a").first).to_be_visible()
        expect(page.locator("#legs dt:visible")).to_have_text(["Sparse"])
        page.goto(f"{address}/#q={QUERY}&mode=dense&dense=40")
        page.reload()
        expect(page.locator("li.hit")).to_have_count(10)
        expect(page.locator("#modes")).to_be_hidden()
        expect(page.locator("#balance")).to_be_hidden()
        hit = page.locator("li.hit").first
        assert "Dense" not in hit.inner_text()
        hit.get_by_text("Why this hit?").click()
        expect(hit.locator(".why thead th")).to_have_text(["Word", "Adds to the sparse score"])
        hit.locator(".word summary").first.click()
        expect(hit.locator(".word ul").first).to_be_visible()


def test_the_bundles_own_weights_hold_until_the_slider_is_moved(page: Page, browser: Browser, site: str) -> None:
    with page.expect_response("**/search") as caught:
        search_for(page, QUERY)
    assert "fusion" not in asked(caught.value.request)
    reset, slider = page.get_by_role("button", name="Reset the weights"), page.get_by_label("Weight of the dense leg")
    expect(reset).to_be_hidden()
    expect(slider).to_have_value("70")
    for value, mode in (("100", "dense"), ("0", "sparse")):
        with page.expect_response("**/search") as caught:
            slider.fill(value)
        dense = int(value) / 100
        assert asked(caught.value.request)["fusion"]["weights"] == {"dense": dense, "sparse": 1 - dense}
        alone = page.request.post("/search", data={"query": QUERY, "mode": mode}).json()
        assert ids(caught.value.json()) == ids(alone)
    expect(page.locator("#balance")).to_contain_text("Dense 0 %")
    expect(page.locator("#balance")).to_contain_text("Sparse 100 %")
    with page.expect_response("**/search") as caught:
        more(page).click()
    assert asked(caught.value.request)["fusion"]["weights"]["dense"] == 0
    expect(page.locator("li.hit")).to_have_count(20)
    with page_of(browser, site, page.url) as other:
        expect(other.get_by_label("Weight of the dense leg")).to_have_value("0")
    # Searches of the slider may be under way.
    with page.expect_response(lambda response: "fusion" not in asked(response.request)):
        reset.click()
    expect(page.locator("li.hit")).to_have_count(10)
    expect(slider).to_have_value("70")
    expect(reset).to_be_hidden()
    page.get_by_label("Dense", exact=True).check()
    expect(slider).to_be_hidden()


def test_documents_like_a_hit_are_a_search_of_their_own(page: Page, site: str) -> None:
    search_for(page, "play music")
    first = page.locator("li.hit").first
    like = first.get_attribute("data-id")
    first.get_by_role("button", name="More like this").click()
    expect(page.locator("#meant")).to_have_text(f"Documents like “{like}”.")
    assert f"#like={like}&" in page.url
    expected = ids(answer_of(site, like=like, group_by="text"))
    assert shown_ids(page) == expected
    page.reload()
    expect(page.locator("#meant")).to_have_text(f"Documents like “{like}”.")
    assert shown_ids(page) == expected
    page.locator("li.hit").first.get_by_text("Why this hit?").click()
    expect(page.locator("li.hit").first).to_contain_text("The dense score is not divided among the words.")
    search_for(page, "edit text")
    expect(page.locator("#meant")).to_be_hidden()
    assert "like=" not in page.url
    page.go_back()
    expect(page.locator("#meant")).to_have_text(f"Documents like “{like}”.")
