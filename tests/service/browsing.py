"""What tests of the pages share: a hostile document, and a search as a person types it."""

import json

from playwright.sync_api import Page, expect

__all__ = ["ATTACK", "search_for"]

ATTACK = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


def search_for(page: Page, text: str) -> None:
    box = page.get_by_role("searchbox", name="Search")
    with page.expect_response(lambda response: json.loads(response.request.post_data or "{}").get("query") == text):
        box.fill(text)
    expect(page.get_by_role("status")).to_contain_text("candidates ranked in")
