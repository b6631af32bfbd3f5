"""What the page makes of documents: example queries, files with several passages, names and units of fields."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from lightretriever.artifacts.bundle.manifest import LegWeights
from tests.service.browsing import answer_of, page_of, search_for, shown_ids
from tests.service.live import live_bundles
from tests.support.keys import keys_file
from tests.support.meaning import make_meaningful_bundle
from tests.support.tiny import TinyDocument, make_tiny_bundle, tiny_documents
from tests.support.written import ENTRIES

pytestmark = pytest.mark.slow

QUERY = "play music from the terminal"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of passages of nine files."""
    made = [{"path": f"notes/{n % 9}.md", "installed_kb": n, "last_change": "2024-05-31"} for n in range(90)]
    documents = [replace(one, more=more) for one, more in zip(tiny_documents(90), made, strict=True)]
    path = tmp_path_factory.mktemp("page") / "bundle"
    make_tiny_bundle(path, documents=documents, fields={"installed_kb": "number"})
    return path


@pytest.fixture(scope="module")
def site(bundle: Path) -> Iterator[str]:
    with live_bundles(bundle) as url:
        yield url


def test_an_empty_page_has_queries_to_try(page: Page, site: str) -> None:
    examples = httpx2.get(f"{site}/info", timeout=60).json()["examples"]
    assert len(examples) == 3
    links = page.locator("#examples a")
    expect(links).to_have_count(3)
    assert links.all_inner_texts() == examples
    links.nth(1).click()
    expect(page.locator("li.hit").first).to_be_visible()
    assert page.get_by_role("searchbox").input_value() == examples[1]


def test_each_file_is_one_hit_with_names_and_units_in_the_upper_third_of_a_phone(page: Page) -> None:
    search_for(page, QUERY)
    hits = page.locator("li.hit")
    expect(hits).to_have_count(9)
    expect(page.get_by_role("status")).to_contain_text("9 files in 90 candidates, ranked in")
    facts = hits.first.locator(".facts").inner_text()
    assert "9 more of this file among the candidates" in facts
    assert "Installed: " in facts
    assert " kB" in facts
    assert "Last change: 2024-05-31" in facts
    expect(page.locator("#fields legend")).to_have_text("Installed (kB)")
    expect(hits.first).to_contain_text(re.compile(r"Denserank \d+ · 0\.\d+"))
    page.set_viewport_size({"width": 360, "height": 780})
    assert top_of_the_first_hit(page) <= 260


def top_of_the_first_hit(page: Page) -> float:
    box = page.locator("li.hit").first.bounding_box()
    assert box is not None
    return box["y"]


def test_the_same_with_collections_and_a_better_spelling(browser: Browser, tmp_path: Path) -> None:
    meaning = make_meaningful_bundle(tmp_path / "meaning", weights=LegWeights(dense=0.5, sparse=0.5)).path
    with live_bundles({"notes": meaning, "shop": meaning}) as url:
        page = browser.new_page(base_url=f"{url}/collections/shop/", viewport={"width": 360, "height": 780})
        page.goto("")
        search_for(page, "repairing bicycels")
        expect(page.locator("#meant")).to_have_text("Did you mean repairing bicycles?")
        assert top_of_the_first_hit(page) <= 260
        expect(page.get_by_role("heading", name="1 Repairing bicycles")).to_be_visible()
        page.set_viewport_size({"width": 320, "height": 568})
        assert page.evaluate("document.documentElement.scrollWidth") == 320
        page.close()


def test_another_collection_is_asked_the_same(browser: Browser, bundle: Path, tmp_path: Path) -> None:
    """The filter stays behind: the other collection may not have the field."""
    meaning = make_meaningful_bundle(tmp_path / "meaning").path
    with live_bundles({"files": bundle, "notes": meaning}) as url, page_of(browser, url) as page:
        page.get_by_label("Sparse", exact=True).check()
        search_for(page, "bicycle chain")
        page.get_by_role("group", name="Installed (kB)").get_by_label("from").fill("3")
        expect(page.locator("#unfold")).to_have_text("Filters (1)")
        page.get_by_role("link", name="notes").click()
        page.wait_for_url("**/collections/notes/**")
        expect(page.get_by_role("searchbox")).to_have_value("bicycle chain")
        expect(page.get_by_label("Sparse", exact=True)).to_be_checked()
        expect(page.locator("li.hit h2").first).to_contain_text("Repairing bicycles")
        expect(page.locator("#unfold")).to_be_hidden()
        page.get_by_role("searchbox").fill("")
        expect(page.get_by_role("link", name="files")).to_have_attribute("href", re.compile("/files/#?$"))


def test_a_service_with_keys_tells_no_stranger_of_its_documents(bundle: Path, tmp_path: Path) -> None:
    with live_bundles(bundle, api_keys_file=keys_file(tmp_path, *ENTRIES)) as url:
        assert "examples" not in httpx2.get(f"{url}/info", timeout=60).json()


def test_documents_with_the_same_text_are_shown_once(browser: Browser, tmp_path: Path) -> None:
    same = "Plays music from the terminal, with playlists and a library."
    copies = [TinyDocument(f"copy-{number}", f"Player {number}", same, 2000) for number in range(12)]
    titles = [TinyDocument(f"title-{number}", f"Play music {number}", "", 2000) for number in range(2)]
    documents = [*copies, *titles, *tiny_documents(30)]
    path = make_tiny_bundle(tmp_path / "bundle", documents=documents, vocabulary="words").path
    with live_bundles(path) as url, page_of(browser, url) as page:
        page.get_by_label("Sparse", exact=True).check()
        search_for(page, QUERY)
        shown = shown_ids(page)
        assert sum(name.startswith("copy-") for name in shown) == 1
        assert sum(name.startswith("title-") for name in shown) == 2  # no text is not the same text
        first = page.locator("li.hit[data-id^=copy]")
        expect(first.locator(".facts")).to_contain_text("11 more with the same text among the candidates")


def test_what_a_rule_added_how_a_hit_matches_and_the_first_hit_s_part_are_shown(
    browser: Browser, tmp_path: Path
) -> None:
    meaning = make_meaningful_bundle(tmp_path / "meaning", weights=LegWeights(dense=0.5, sparse=0.5)).path
    rules = tmp_path / "rules.yaml"
    rules.write_text('synonyms: [{words: [bicycles], add: ["brakes <b>"]}]')
    with live_bundles(meaning, rules=rules) as url, page_of(browser, url, "/?q=repairing+bicycles") as page:
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
