"""What tests of the pages share: a hostile document, searches as a person types them, and what the page shows.

python -m tests.service.browsing URL docs/page.png    take the README's picture, from a running service
"""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, Request, expect, sync_playwright

ATTACK = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


@contextmanager
def browsing() -> Iterator[Browser]:
    """Yield a headless Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program, "no Chromium is installed: apt-get install chromium"
    expect.set_options(timeout=60_000)  # a busy machine is no fault of the page
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


@contextmanager
def page_of(browser: Browser, url: str, path: str = "/") -> Iterator[Page]:
    """Yield an open page of a service, whose console has no messages at the end but those of requests that failed."""
    messages: list[str] = []
    with browser.new_page(base_url=url) as page:
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.goto(path)
        yield page
    # Chromium speaks of autofocus where the test was quicker to click than it to draw the page.
    assert [one for one in messages if not one.startswith(("Failed to load resource: ", "Autofocus"))] == []


def asked(request: Request) -> dict[str, Any]:
    """The first search of a request, which may be a batch."""
    body: dict[str, Any] = json.loads(request.post_data or "{}")
    return next(iter(body.get("searches", [body])))


def search_for(page: Page, text: str) -> None:
    box = page.get_by_role("searchbox", name="Search")
    with page.expect_response(lambda response: asked(response.request).get("query") == text):
        box.fill(text)
    expect(page.get_by_role("status")).to_contain_text("ranked in")


def more(page: Page) -> Locator:
    return page.get_by_role("button", name="More hits")


def answer_of(site: str, **search: Any) -> dict[str, Any]:
    """What the API answers itself."""
    response = httpx2.post(f"{site}/search", json=search, timeout=60)
    answer: dict[str, Any] = response.json()
    return answer


def shown_ids(page: Page) -> list[str]:
    """The ids of the hits on the page."""
    found: list[str] = page.locator("li.hit").evaluate_all("items => items.map(item => item.dataset.id)")
    return found


def serious(page: Page) -> list[str]:
    """What axe finds on the page that is serious, in either scheme of colours."""
    found = list[str]()
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        violations = Axe().run(page).response["violations"]
        found += [one["id"] for one in violations if one["impact"] in {"serious", "critical"}]
    return found


def _take_picture(url: str, file: Path) -> None:
    with browsing() as browser:
        page = browser.new_page(base_url=url, color_scheme="light", viewport={"width": 1100, "height": 800})
        page.goto("/")
        for query in ("edit a photo", "merge pdf", "merge several pdf files into one"):
            search_for(page, query)
            page.wait_for_timeout(500)  # so that drawing the page takes no time from the next search
        page.locator("li.hit").first.get_by_text("Why this hit?").click()
        page.screenshot(path=file)


if __name__ == "__main__":
    _take_picture(sys.argv[1], Path(sys.argv[2]))
