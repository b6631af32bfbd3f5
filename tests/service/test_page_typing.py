"""The page of a bundle that corrects, completes and judges: in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from lightretriever.artifacts.bundle.reader import Bundle
from tests.service.browsing import answer_of, asked, search_for
from tests.service.live import live_bundles
from tests.support.tiny import TinyDocument, make_tiny_bundle, tiny_documents

pytestmark = pytest.mark.slow

LIST = "The pedal kit:\n\n- two pedals\n- a spanner\n\n1. Loosen it.\n2) Turn it."


@pytest.fixture(scope="module")
def site(meaningful_bundle: Bundle) -> Iterator[str]:
    with live_bundles(meaningful_bundle.path) as url:
        yield url


def finish(page: Page, text: str) -> None:
    """Search for a text as it stands, which Enter says."""
    search_for(page, text)
    with page.expect_response(lambda response: "prefix" not in asked(response.request)):
        page.get_by_role("searchbox").press("Enter")
    expect(page.get_by_role("status")).to_contain_text("ranked in")


def test_nonsense_gets_no_bar(page: Page) -> None:
    finish(page, "bababa cefono tesagu")
    expect(page.get_by_role("status")).to_contain_text("No document matches well; these are the nearest.")
    expect(page.locator("li.hit").first).to_be_visible()
    expect(page.locator("li.hit dd.bar")).to_have_count(0)
    finish(page, "mend the punctured tyre of a bicycle")
    expect(page.get_by_role("status")).not_to_contain_text("No document matches well")
    expect(page.locator("li.hit dd.bar").first).to_be_visible()


def test_a_rare_word_that_a_document_has_is_a_match(page: Page, site: str) -> None:
    assert answer_of(site, query="cellar")["matched"] == "none"
    finish(page, "cellar")
    expect(page.get_by_role("status")).not_to_contain_text("No document matches well")
    expect(page.locator("li.hit dd.bar").first).to_be_visible()


def test_what_operators_did_is_told(page: Page) -> None:
    finish(page, 'mend a "tyre in a bicycle" -chain')
    meant = page.locator("#meant")
    expect(meant).to_contain_text("Without documents that have “chain”.")
    expect(meant).to_contain_text("Documents need not have the phrase “tyre in a bicycle”.")
    meant.get_by_role("link").click()
    expect(meant).not_to_contain_text("Without")
    assert page.get_by_role("searchbox").input_value() == 'mend a "tyre in a bicycle" "-chain"'


def test_a_better_spelling_is_one_click_away(page: Page) -> None:
    page.locator("#weight").fill("30")
    finish(page, "bycicle tyer chain")
    meant = page.locator("#meant")
    expect(meant).to_have_text("Did you mean bicycle tyre chain?")
    meant.get_by_role("link").click()
    expect(meant).to_be_hidden()
    assert page.get_by_role("searchbox").input_value() == "bicycle tyre chain"
    expect(page.locator("li.hit h2").first).to_contain_text("Repairing bicycles")
    assert page.locator("#weight").input_value() == "30"  # as before


def test_the_last_word_is_completed_until_enter(page: Page) -> None:
    search_for(page, "punctu")
    expect(page.locator("#meant")).to_contain_text("Searched for punctured.")
    expect(page.locator("li.hit h2").first).to_contain_text("Repairing bicycles")
    search_for(page, "oil ch")
    expect(page.locator("#meant")).to_contain_text("oil chain · ")
    page.locator("#meant").get_by_role("link", name="oil chess").click()
    expect(page.locator("#meant")).to_be_hidden()
    assert page.get_by_role("searchbox").input_value() == "oil chess"


def test_items_of_a_list_stand_apart(page: Page, tmp_path: Path) -> None:
    documents = [*tiny_documents(10), TinyDocument("list", "Pedals", LIST, 2000)]
    with live_bundles(make_tiny_bundle(tmp_path / "lists", documents=documents).path) as url:
        page.goto(url)
        search_for(page, "pedal kit spanner")
        text = page.locator("li.hit[data-id=list] .text p")
        expect(text).to_have_text("The pedal kit: • two pedals • a spanner • Loosen it. • Turn it.")
