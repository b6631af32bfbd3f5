"""What the page says of a hit, and how it weighs the legs; in a real browser."""

import re
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from lightretriever.artifacts.bundle.reader import Bundle
from tests.service.browsing import answer_of, asked, page_of, search_for, serious, shown_ids
from tests.service.live import live_bundles
from tests.support.asking import ids
from tests.support.tiny import make_tiny_bundle

pytestmark = pytest.mark.slow

QUERY = "play music from the terminal"


def shown_shares(row: Locator) -> list[str]:
    return row.locator("td b").all_inner_texts()


def test_a_hit_says_what_its_scores_are_made_of(page: Page, site: str) -> None:
    search_for(page, QUERY)
    hit = page.locator("li.hit").first
    expect(hit.locator("table")).to_be_hidden()
    hit.get_by_text("Why this hit?").click()
    explanation = answer_of(site, query=QUERY, explain=True)["hits"][0]["explanation"]
    words = {word["word"]: word for word in explanation["words"]}
    rows = hit.locator(".why tbody tr:not(.parts)")
    expect(rows).to_have_count(len(words))
    for row in rows.all():
        word = words[row.locator(".word span").first.inner_text().partition("\n")[0].partition(", added")[0]]
        dense, sparse = map(float, shown_shares(row))
        assert abs(dense - word["dense"]) < 0.001
        assert abs(sparse - word["sparse"]) < 0.51
        expect(row.locator(".meaning")).to_have_count(int(word["added"]))
    added = explanation["fusion"]
    expect(hit.locator(".why")).to_contain_text(
        f"{added['dense']:.3f} of the dense leg + {added['sparse']:.3f} of the sparse leg"
    )
    expect(hit.locator(".why")).to_contain_text(f"have {round(100 * explanation['coverage'])} % of the query's terms.")


def test_a_word_unfolds_into_its_tokens_and_terms_by_the_keyboard(page: Page, site: str) -> None:
    search_for(page, QUERY)
    hit = page.locator("li.hit").first
    hit.get_by_text("Why this hit?").press("Enter")
    (told,) = (
        word
        for word in answer_of(site, query=QUERY, explain=True)["hits"][0]["explanation"]["words"]
        if word["word"] == "terminal"
    )
    button = hit.locator(".why").get_by_role("button", name="terminal")
    parts = page.locator(f"#{button.get_attribute('aria-controls')}")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(parts).to_be_hidden()
    button.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(parts).to_be_visible()
    columns = parts.locator("ul")
    for column, of_word, leg in zip(columns.all(), (told["tokens"], told["terms"]), ("dense", "sparse"), strict=True):
        shares = [float(text) for text in column.locator("b").all_inner_texts()]
        assert shares == pytest.approx([part[leg] for part in of_word], abs=0.51 if leg == "sparse" else 0.001)
    button.press("Space")
    expect(parts).to_be_hidden()


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
        page.get_by_role("button", name="More hits").click()
    hit.get_by_text("Why this hit?").click()
    row = hit.locator(".why tbody tr").first
    expect(row.get_by_role("button", name=re.compile(rf"^{word}\W+added by meaning$"))).to_be_visible()
    row.get_by_role("button").click()
    expect(hit.locator(".why .parts .meaning")).to_have_text("added by meaning")


def test_all_terms_of_a_document_are_shown_on_demand(page: Page, site: str) -> None:
    search_for(page, QUERY)
    hit = page.locator("li.hit").first
    hit.get_by_text("Why this hit?").click()
    hit.get_by_role("button", name="All terms of this document").click()
    terms = httpx2.get(f"{site}/terms/{hit.get_attribute('data-id')}", timeout=60).json()["terms"]
    expect(hit.locator(".terms li")).to_have_count(len(terms))
    expect(hit.locator(".terms li.added")).to_have_count(sum(not term["in_text"] for term in terms))


def test_words_are_explained_where_the_terms_are_words(browser: Browser, meaningful_bundle: Bundle) -> None:
    with live_bundles(meaningful_bundle.path) as address, page_of(browser, address) as page:
        search_for(page, "the mended tyres of a bicycle")
        hit = page.locator("li.hit").first
        hit.get_by_text("Why this hit?").click()
        expect(hit.locator(".why")).to_contain_text("have 100 % of the query's words.")
        row = hit.locator(".why tbody").filter(has=page.get_by_role("button", name="tyres"))
        row.get_by_role("button").click()
        expect(row.locator(".parts")).to_contain_text("tyre")
        stop = hit.locator(".why tbody").filter(has=page.get_by_role("button", name="the", exact=True))
        assert shown_shares(stop.locator("tr").first)[1] == "–"
        stop.get_by_role("button").click()
        expect(stop.locator(".parts")).to_contain_text("A stop word or a sign, which the leg leaves out.")
        search_for(page, "honey, brakes and bicycle")  # those that add most come first
        hit.get_by_text("Why this hit?").click()
        expect(hit.locator(".word")).to_have_text(["bicycle", "brakes", "and", ",", "honey"])


def test_a_bundle_without_a_dense_leg(page: Page, tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "sparse", vocabulary="words", dense=False)
    with live_bundles(bundle.path) as address:
        for fragment in ("", f"#q={QUERY}&mode=dense&dense=40"):
            page.goto(f"{address}/{fragment}")
            page.reload()
            if fragment:
                expect(page.locator("li.hit")).to_have_count(10)
            else:
                expect(page.locator("#examples a").first).to_be_visible()
                expect(page.locator("#legs dt:visible")).to_have_text(["Sparse"])
            expect(page.locator("#modes")).to_be_hidden()
            expect(page.locator("#balance")).to_be_hidden()
        hit = page.locator("li.hit").first
        assert "Dense" not in hit.inner_text()
        hit.get_by_text("Why this hit?").click()
        expect(hit.locator(".why thead th")).to_have_text(["Word", "Adds to the sparse score"])
        hit.locator(".word").first.click()
        expect(hit.locator(".parts").first).to_be_visible()


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
            [100 * (added.get(leg) or 0) / hits[0]["score"] for leg in ("dense", "sparse")], abs=0.01
        )


def test_the_slider_weighs_the_legs_at_once(page: Page, browser: Browser, site: str) -> None:
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
    with page_of(browser, site, page.url) as other:
        expect(other.get_by_label("Weight of the dense leg")).to_have_value("0")
    page.get_by_label("Dense", exact=True).check()
    expect(slider).to_be_hidden()


def test_the_bundles_own_weights_hold_until_the_slider_is_moved_and_come_back(page: Page) -> None:
    with page.expect_response("**/search") as caught:
        search_for(page, QUERY)
    assert "fusion" not in asked(caught.value.request)
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


def unfold(hit: Locator) -> None:
    """Show all that there is of a hit's words."""
    hit.get_by_text("Why this hit?").click()
    for word in hit.locator(".word").all():
        word.click()


def test_axe_finds_nothing_serious_and_a_phone_needs_no_scrolling_sideways(page: Page) -> None:
    search_for(page, QUERY)
    unfold(page.locator("li.hit").first)
    page.locator("li.hit").first.get_by_role("button", name="All terms").click()
    expect(page.locator(".terms")).to_be_visible()
    assert serious(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


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
