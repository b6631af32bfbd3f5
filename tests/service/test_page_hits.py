"""What the page shows of hits and queries, held against what the API answers: more hits, what scores are made of,
examples, files, snippets and whole texts, and what the service corrects, completes, adds and judges."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from lightretriever.artifacts.bundle.manifest import LegWeights
from lightretriever.artifacts.bundle.reader import Bundle
from tests.service.browsing import ATTACK, answer_of, asked, more, page_of, search_for, serious, shown_ids
from tests.service.live import live_bundles
from tests.support.asking import ids
from tests.support.meaning import make_meaningful_bundle
from tests.support.tiny import TinyDocument, make_tiny_bundle, tiny_documents

pytestmark = pytest.mark.slow

QUERY = "play music from the terminal"
LONG = " ".join(f"Sentence {number} is about many things 🎵 and more." for number in range(40))
NEEDLES = [
    TinyDocument("middle", f"Needle {ATTACK}", f"{LONG} Here is the needle.\n<b>Bold</b> 🎵🎵 needle. {LONG}", 2000),
    TinyDocument("end", "At the end", f"{LONG} Here is the needle.", 2000),
    TinyDocument("start", "At the beginning", f"The needle is here. {LONG}", 2000),
    TinyDocument("short", "", "🎵🎵 A needle, and no more 🎵.", 2000),
    TinyDocument("title", "A needle " + "of a title that goes on " * 20, "", 2000),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of passages of nine files."""
    made = [{"path": f"notes/{n % 9}.md", "installed_kb": n, "last_change": "2024-05-31"} for n in range(90)]
    documents = [replace(one, more=more) for one, more in zip(tiny_documents(90), made, strict=True)]
    path = tmp_path_factory.mktemp("page") / "bundle"
    return make_tiny_bundle(path, documents=documents, fields={"installed_kb": "number"}).path


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose vectors mean something, and whose legs weigh the same."""
    path = tmp_path_factory.mktemp("page") / "meaning"
    return make_meaningful_bundle(path, weights=LegWeights(dense=0.5, sparse=0.5)).path


def test_examples_files_and_another_collection_are_shown(browser: Browser, files: Path, even: Path) -> None:
    with live_bundles({"files": files, "notes": even}) as url, page_of(browser, url) as page:
        box, hits = page.get_by_role("searchbox"), page.locator("li.hit")
        examples = httpx2.get(f"{url}/info", timeout=60).json()["examples"]
        links = page.locator("#examples a")
        expect(links).to_have_count(3)
        assert links.all_inner_texts() == examples
        links.nth(1).click()
        expect(hits.first).to_be_visible()
        assert box.input_value() == examples[1]
        search_for(page, QUERY)
        expect(hits).to_have_count(9)
        expect(page.get_by_role("status")).to_contain_text("9 files in 90 candidates, ranked in")
        facts = hits.first.locator(".facts").inner_text()
        for fact in ("9 more of this file among the candidates", "Installed kb: ", "Last change: 2024-05-31"):
            assert fact in facts
        expect(page.locator("#fields legend")).to_have_text("Installed kb")
        expect(hits.first).to_contain_text(re.compile(r"Denserank \d+ · 0\.\d+"))
        page.get_by_label("Sparse", exact=True).check()
        search_for(page, "bicycle chain")
        least = page.get_by_role("group", name="Installed kb").get_by_label("from")
        least.fill("3")
        least.press("Enter")
        expect(page.locator("#filters > summary")).to_have_text("Filters (1)")
        page.get_by_role("link", name="notes").click()
        page.wait_for_url("**/collections/notes/")
        expect(box).to_have_value("")
        search_for(page, "bicycle chain")
        expect(page.locator("li.hit h2").first).to_contain_text("Repairing bicycles")
        expect(page.locator("#filters")).to_be_hidden()
        expect(page.get_by_role("link", name="files")).to_have_attribute("href", "../files/")
        page.set_viewport_size({"width": 360, "height": 780})
        search_for(page, "repairing bicycels")
        expect(page.locator("#meant")).to_have_text("Did you mean repairing bicycles?")
        assert hits.first.evaluate("hit => hit.getBoundingClientRect().top") <= 260
        expect(page.get_by_role("heading", name="1 Repairing bicycles")).to_be_visible()
        page.set_viewport_size({"width": 320, "height": 568})
        assert page.evaluate("document.documentElement.scrollWidth") == 320


def test_added_words_matches_and_the_share_of_the_first_hit(browser: Browser, even: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text('synonyms: [{words: [bicycles], add: ["brakes <b>"]}]')
    with live_bundles(even, rules=rules) as url, page_of(browser, url, "/?q=repairing+bicycles") as page:
        expect(page.locator("#meant")).to_have_text("Also searched for “brakes <b>”.")
        search_for(page, "repairing")
        expect(page.locator("#meant")).to_be_hidden()
        hits = answer_of(url, query="repairing", explain=True)["hits"]
        fed = next(place for place, hit in enumerate(hits) if hit["explanation"]["fusion"].get("feedback"))
        assert {hit["matched"] for hit in hits} >= {"strong"}
        for place in (0, fed):
            shown = page.locator("li.hit").nth(place)
            expect(shown).to_contain_text(f"Match{hits[place]['matched']}")
        shown.get_by_text("Why this hit?").click()
        share = hits[fed]["explanation"]["fusion"]["feedback"]
        expect(shown.locator(".why")).to_contain_text(f"{share:.3f} for being like the first hit")


def parts(snippet: dict[str, Any]) -> list[str]:
    """The marked parts; Python's places count Unicode characters too."""
    return [snippet["text"][start:end] for start, end in snippet["marks"]]


def test_hits_show_snippets_with_their_marks_and_the_whole_text_on_demand(browser: Browser, tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "bundle", documents=[*tiny_documents(20), *NEEDLES])
    with live_bundles(bundle.path) as url, page_of(browser, url) as page:

        def hit(name: str) -> Locator:
            return page.locator(f"li.hit[data-id='{name}']")

        page.get_by_label("Sparse", exact=True).check()
        search_for(page, "needle")
        wanted = {"fields": ["title", "text"], "length": 320}
        answer = answer_of(url, query="needle", mode="sparse", k=10, snippets=wanted)
        told = {each["id"]: each["snippets"] for each in answer["hits"]}
        for document in NEEDLES:
            for name, place, whole in (("title", "h2", document.title), ("text", ".text p", document.text)):
                if not whole:
                    continue
                snippet, element = told[document.id][name], hit(document.id).locator(place)
                before = "… " if snippet["start"] else ""
                after = " …" if snippet["start"] + len(snippet["text"]) < len(whole) else ""
                rank = element.locator(".rank").inner_text() if name == "title" else ""
                assert element.text_content() == rank + before + snippet["text"] + after
                assert element.locator("mark").all_text_contents() == parts(snippet)
        expect(hit("short").get_by_role("button", name="Whole text")).to_have_count(0)
        expect(hit("end").get_by_role("button", name="Whole text")).to_have_count(1)
        middle, snippet = hit("middle"), told["middle"]["text"]
        assert parts(snippet) == ["needle", "needle"]
        text = middle.locator(".text p")
        short = text.text_content()
        middle.get_by_role("button", name="Whole text of Needle").click()
        assert text.text_content() == NEEDLES[0].text
        assert text.locator("mark").all_text_contents() == parts(snippet)
        # The marks stand where they stood in the snippet.
        first = snippet["start"] + snippet["marks"][0][0]
        assert text.evaluate("text => text.firstChild.data") == NEEDLES[0].text[:first]
        middle.get_by_role("button", name="Shorter").click()
        assert text.text_content() == short
        assert middle.locator(":is(h2, .text) :is(b, img, script)").count() == 0
        assert page.title() == "LightRetriever Search"


def test_a_query_is_corrected_completed_and_judged(browser: Browser, meaningful_bundle: Bundle) -> None:
    with live_bundles(meaningful_bundle.path) as url, page_of(browser, url) as page:
        status, meant, box = page.get_by_role("status"), page.locator("#meant"), page.get_by_role("searchbox")
        bars, first = page.locator("li.hit dd.bar"), page.locator("li.hit h2").first

        def finish(text: str) -> None:
            """Search for a text as it stands, which Enter says."""
            search_for(page, text)
            with page.expect_response(lambda response: "prefix" not in asked(response.request)):
                box.press("Enter")
            expect(status).to_contain_text("ranked in")

        finish("bababa cefono tesagu")  # nonsense gets no bar
        expect(status).to_contain_text("No document matches well; these are the nearest.")
        expect(first).to_be_visible()
        expect(bars).to_have_count(0)
        finish("mend the punctured tyre of a bicycle")
        expect(status).not_to_contain_text("No document matches well")
        expect(bars.first).to_be_visible()
        assert answer_of(url, query="cellar")["matched"] == "none"
        finish("cellar")  # a rare word that a document has is a match
        expect(status).not_to_contain_text("No document matches well")
        expect(bars.first).to_be_visible()
        finish('mend a "tyre in a bicycle" -chain')
        expect(meant).to_contain_text("Without documents that have “chain”.")
        expect(meant).to_contain_text("Documents need not have the phrase “tyre in a bicycle”.")
        finish("bycicle tyer chain")
        expect(meant).to_have_text("Did you mean bicycle tyre chain?")
        meant.get_by_role("link").click()
        expect(meant).to_be_hidden()
        assert box.input_value() == "bicycle tyre chain"
        expect(first).to_contain_text("Repairing bicycles")
        search_for(page, "punctu")  # the last word is completed until Enter
        expect(meant).to_contain_text("Searched for punctured.")
        expect(first).to_contain_text("Repairing bicycles")
        search_for(page, "oil ch")
        expect(meant).to_contain_text("oil chain · ")
        meant.get_by_role("link", name="oil chess").click()
        expect(meant).to_be_hidden()
        assert box.input_value() == "oil chess"


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
        row = hit.locator(".why tbody tr").filter(has=page.locator("th", has_text=re.compile(r"^the(\W|$)")))
        assert shown_shares(row)[1] == "–"  # a stop word
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
