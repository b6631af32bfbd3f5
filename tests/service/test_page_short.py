"""The page in short, for `make test`: hits come, and what is injected never runs. All else of the pages is slow."""

from playwright.sync_api import Browser, Page, expect

from tests.service.browsing import search_for


def test_hits_come_while_typing(page: Page) -> None:
    expect(page.locator("#about")).to_contain_text("41 documents of tiny, encoded by tiny-random (not trained")
    search_for(page, "play music from the terminal")
    hits = page.locator("li.hit")
    expect(hits).to_have_count(10)
    expect(hits.first).to_contain_text("Dense")
    expect(hits.first).to_contain_text("rank")
    assert [hits.nth(number).locator(".rank").inner_text() for number in range(10)] == [f"{n} " for n in range(1, 11)]


def test_injected_script_and_style_never_run(browser: Browser, site: str) -> None:
    messages: list[str] = []
    with browser.new_page(base_url=site) as page:
        page.on("console", lambda message: messages.append(message.text))
        page.goto("/")
        style = "<style>h1 {color: red}</style><b onclick='1'>x</b>"
        page.evaluate("html => document.body.insertAdjacentHTML('beforeend', html)", style)
        script = "const s = document.createElement('script'); s.text = 'document.title = 1'; document.body.append(s)"
        page.evaluate(script)
        assert page.title() == "LightRetriever Search"
        assert page.evaluate("getComputedStyle(document.querySelector('h1')).color") != "rgb(255, 0, 0)"
    assert any("Content Security Policy" in message for message in messages)
