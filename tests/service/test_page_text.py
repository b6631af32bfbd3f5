"""The text of a hit on the page: the service's snippets with their marks, and the whole text on demand."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.service.browsing import ATTACK, answer_of, search_for
from tests.service.live import live_bundles
from tests.support.tiny import TinyDocument, make_tiny_bundle, tiny_documents

pytestmark = pytest.mark.slow

LENGTH = 320
LONG = " ".join(f"Sentence {number} is about many things 🎵 and more." for number in range(40))
NEEDLES = [
    TinyDocument("middle", f"Needle {ATTACK}", f"{LONG} Here is the needle.\n<b>Bold</b> 🎵🎵 needle. {LONG}", 2000),
    TinyDocument("end", "At the end", f"{LONG} Here is the needle.", 2000),
    TinyDocument("start", "At the beginning", f"The needle is here. {LONG}", 2000),
    TinyDocument("short", "", "🎵🎵 A needle, and no more 🎵.", 2000),
    TinyDocument("title", "A needle " + "of a title that goes on " * 20, "", 2000),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("needles") / "bundle"
    bundle = make_tiny_bundle(path, documents=[*tiny_documents(20), *NEEDLES])
    with live_bundles(bundle.path) as url:
        yield url


def hit(page: Page, name: str) -> Locator:
    return page.locator(f"li.hit[data-id='{name}']")


def snippets(site: str) -> dict[str, dict[str, Any]]:
    """What the API gives for the query, by document."""
    wanted = {"fields": ["title", "text"], "length": LENGTH}
    answer = answer_of(site, query="needle", mode="sparse", k=10, snippets=wanted)
    return {hit["id"]: hit["snippets"] for hit in answer["hits"]}


def search_needle(page: Page) -> None:
    page.get_by_label("Sparse", exact=True).check()
    search_for(page, "needle")


def parts(snippet: dict[str, Any]) -> list[str]:
    """The marked parts; Python's places count Unicode characters too."""
    return [snippet["text"][start:end] for start, end in snippet["marks"]]


def test_hits_show_the_services_snippets_with_their_marks(page: Page, site: str) -> None:
    search_needle(page)
    told = snippets(site)
    assert {document.id for document in NEEDLES} <= set(told)
    for document in NEEDLES:
        for name, place, whole in (("title", "h2", document.title), ("text", ".text p", document.text)):
            if not whole:
                continue
            snippet, element = told[document.id][name], hit(page, document.id).locator(place)
            before = "… " if snippet["start"] else ""
            after = " …" if snippet["start"] + len(snippet["text"]) < len(whole) else ""
            rank = element.locator(".rank").inner_text() if name == "title" else ""
            assert element.text_content() == rank + before + snippet["text"] + after
            assert element.locator("mark").all_text_contents() == parts(snippet)
    assert parts(told["middle"]["text"]) == ["needle", "needle"]


def test_the_whole_text_is_shown_on_demand_with_its_marks(page: Page, site: str) -> None:
    search_needle(page)
    found, told = hit(page, "middle"), snippets(site)["middle"]["text"]
    text = found.locator(".text p")
    short = text.text_content()
    found.get_by_role("button", name="Whole text of Needle").click()
    assert text.text_content() == NEEDLES[0].text
    assert text.locator("mark").all_text_contents() == parts(told)
    # The marks stand where they stood in the snippet.
    first = told["start"] + told["marks"][0][0]
    assert text.evaluate("text => text.firstChild.data") == NEEDLES[0].text[:first]
    found.get_by_role("button", name="Shorter").click()
    assert text.text_content() == short
    assert found.locator(":is(h2, .text) :is(b, img, script)").count() == 0
    assert page.title() == "LightRetriever Search"


def test_enter_on_a_hit_shows_its_whole_text(page: Page) -> None:
    search_needle(page)
    found = hit(page, "middle")
    found.focus()
    page.keyboard.press("Enter")
    expect(found.locator(".text p")).to_have_text(NEEDLES[0].text)
    page.keyboard.press("Enter")
    expect(found.get_by_role("button", name="Whole text")).to_be_visible()
    expect(found).to_be_focused()


def test_a_text_that_is_shown_whole_has_no_button(page: Page) -> None:
    search_needle(page)
    expect(hit(page, "short").get_by_role("button", name="Whole text")).to_have_count(0)
    expect(hit(page, "end").get_by_role("button", name="Whole text")).to_have_count(1)


def test_documents_that_have_no_word_of_the_query_show_their_beginning(page: Page, site: str) -> None:
    page.get_by_label("Dense", exact=True).check()
    search_for(page, "zzzz")
    expect(page.locator("li.hit")).to_have_count(10)
    expect(page.locator("li.hit mark")).to_have_count(0)
    found = answer_of(site, query="zzzz", mode="dense")["hits"]
    cut = []
    for shown, fields in zip(page.locator("li.hit").all(), (hit["fields"] for hit in found), strict=True):
        number = shown.locator(".rank").text_content() or ""
        for name, place, rank in (("title", "h2", number), ("text", ".text p", "")):
            if not fields[name]:
                continue
            text = (shown.locator(place).text_content() or "").removeprefix(rank)
            beginning = text.removesuffix(" …")
            assert fields[name].startswith(beginning)
            assert len(beginning) > min(len(fields[name]) - 1, LENGTH // 2)
            cut.append(beginning != text)
    assert set(cut) == {False, True}
