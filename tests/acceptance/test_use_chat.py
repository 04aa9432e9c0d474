"""A page of the AI SDK's `useChat` on the server's chat endpoints, in a real browser."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from perdure.demo.chat.script import ANSWER, ASKING, EXPLANATION, LOOKING, REFUSED
from tests.acceptance.samples import LONG
from tests.browser.bundle import bundled
from tests.browser.chromium import chromium, moments, pages, wait_for_characters
from tests.browser.demo import Demo, chat_demo
from tests.browser.relay import relay

pytestmark = LONG

ANSWERS = "article.assistant"
TEXT = f"{ANSWERS} .text"
QUESTION = "What happens here when a process dies?"
COMPLAINT = "My lamp is broken. I want my money back."
HALF = 150
"""How much of an answer is there before anything happens to it."""


@pytest.fixture(scope="module")
def built() -> Path:
    return bundled(Path(__file__).parents[1] / "browser" / "use_chat")


@pytest.fixture(scope="module")
def browser(built: Path) -> Iterator[Browser]:
    with chromium() as it:
        yield it


@pytest.fixture(scope="module")
def demo(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]
) -> Iterator[Demo]:
    """Keep one server for all chats, where there is a browser."""
    with chat_demo(tmp_path_factory.mktemp("chat"), environment) as it:
        yield it


@pytest.fixture
def page(browser: Browser, demo: Demo, built: Path) -> Iterator[Page]:
    with pages(browser, ANSWERS) as it:
        open_page(it, demo.url, built)
        yield it


def open_page(page: Page, url: str, built: Path) -> None:
    """Open a new chat; the files of the page are as if from the server itself."""

    def serve(route: Route) -> None:
        route.fulfill(path=built / Path(route.request.url.partition("?")[0]).name)

    page.context.route("**/use_chat/*", serve)
    page.goto(f"{url}/use_chat/index.html?session=chat-{uuid4()}")
    wait_for(page, "ready")


def say(page: Page, words: str) -> None:
    page.get_by_label("Message").fill(words)
    page.get_by_label("Message").press("Enter")


def wait_for(page: Page, status: str) -> None:
    page.locator(f"main[data-status={status}]").wait_for()


def lengths_of_one_answer(page: Page, whole: str = EXPLANATION) -> list[int]:
    """Return how much of an answer was shown at each moment; nothing else, nor twice, ever was."""
    shown = moments(page)
    assert [texts for texts in shown if len(texts) > 1] == []
    said = ["".join(texts) for texts in shown]
    assert [text for text in said if not whole.startswith(text)] == []
    return [len(text) for text in said]


def falls(lengths: list[int]) -> list[int]:
    return [after for before, after in itertools.pairwise(lengths) if after < before]


def test_a_reload_resumes_the_same_message(page: Page) -> None:
    say(page, QUESTION)
    wait_for_characters(page, TEXT, HALF)
    known = page.locator(ANSWERS).get_attribute("data-id")
    page.reload()
    wait_for(page, "streaming")
    wait_for(page, "ready")
    expect(page.locator(TEXT)).to_have_text([EXPLANATION])
    assert page.locator(ANSWERS).get_attribute("data-id") == known
    lengths_of_one_answer(page)


def test_a_second_tab_reads_along_and_stops(page: Page, built: Path) -> None:
    say(page, QUESTION)
    wait_for_characters(page, TEXT, HALF)
    other = page.context.new_page()
    other.goto(page.url)
    wait_for_characters(other, TEXT, 2 * HALF)
    other.get_by_role("button", name="Stop").click()
    for tab in (page, other):
        wait_for(tab, "ready")
        lengths_of_one_answer(tab)
    left = page.locator(TEXT).inner_text()
    assert HALF < len(left) < len(EXPLANATION)
    assert other.locator(TEXT).inner_text() == left
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(TEXT)).to_have_text([EXPLANATION])


def test_an_answer_goes_on_after_the_network_was_gone(
    browser: Browser, demo: Demo, built: Path
) -> None:
    with relay(demo.url) as way, pages(browser, ANSWERS) as page:
        open_page(page, way.url, built)
        say(page, QUESTION)
        wait_for_characters(page, TEXT, HALF)
        way.cut()
        wait_for(page, "error")
        way.mend(after=3)
        wait_for(page, "ready")
        expect(page.locator(TEXT)).to_have_text([EXPLANATION])
        lengths_of_one_answer(page)


@pytest.mark.parametrize("resets", ["step", "resume"])
def test_what_a_killed_worker_wrote_is_replaced_and_nothing_before_it(
    page: Page, demo: Demo, resets: str
) -> None:
    page.goto(f"{page.url}&resets={resets}")
    say(page, COMPLAINT)
    expect(page.locator(TEXT)).to_have_count(2)
    wait_for_characters(page, TEXT, len(ASKING) // 3)
    known = page.locator(ANSWERS).get_attribute("data-id")
    demo.kill()
    page.get_by_role("button", name="Approve").wait_for()
    expect(page.locator(TEXT)).to_have_text([LOOKING, ASKING])
    assert page.locator(ANSWERS).get_attribute("data-id") == known
    (fall,) = falls(lengths_of_one_answer(page, LOOKING + ASKING))
    # A message that is resumed is made anew from its begin, a step that is reset from its own.
    assert fall >= len(LOOKING) or resets == "resume"


@pytest.mark.parametrize(
    ("decision", "state", "said"),
    [("Approve", "output-available", ANSWER), ("Deny", "output-denied", REFUSED)],
)
def test_an_approval_goes_on_in_the_same_message(
    page: Page, demo: Demo, decision: str, state: str, said: str
) -> None:
    before = demo.backstage()["refunds"]
    say(page, COMPLAINT)
    page.get_by_role("button", name=decision).click()
    expect(page.locator(TEXT)).to_have_text([LOOKING, ASKING, said])
    wait_for(page, "ready")
    refund = page.get_by_role("region", name="refund_order")
    expect(refund).to_have_attribute("data-state", state)
    assert page.locator(ANSWERS).count() == 1
    assert demo.backstage()["refunds"] - before == (decision == "Approve")
    page.reload()
    expect(page.locator(TEXT)).to_have_text([LOOKING, ASKING, said])
    expect(refund).to_have_attribute("data-state", state)
