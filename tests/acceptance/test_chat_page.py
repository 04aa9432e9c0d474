"""The demo's chat page in a real browser, as somebody uses it who kills its workers."""

from __future__ import annotations

import itertools
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from perdure.demo.chat.script import ANSWER, EXPLANATION, LOOKING, REFUSED
from tests.acceptance.samples import LONG
from tests.browser.chromium import chromium, moments, pages, wait_for_characters
from tests.browser.demo import Demo, chat_demo
from tests.browser.relay import relay

pytestmark = LONG

TEXT = "#transcript .text"
RUN = "#transcript .run"
QUESTION = "What happens here when a process dies?"
COMPLAINT = "My lamp of order A-1042 is broken. I want my money back."
HALF = 150
"""How much of an answer is there before anything happens to it."""

VECTORS = Path(__file__).parents[1] / "vectors" / "session"
_STATES = {
    "input-streaming": "written",
    "input-available": "called",
    "approval-requested": "asks",
    "output-available": "returned",
    "output-error": "failed",
    "output-denied": "denied",
}
# What readers see who come before any of the deliveries, or after all; each once if all the same.
_FOLD = """async (wire) => {
  const { Log } = await import('/page/log.js');
  const { fold } = await import('/page/fold.js');
  const seen = (nodes) => ({
    messages: nodes.flatMap((node) => node.kind === 'said' ? [[node.key, [node.text]]] :
      [...node.messages.values()].map(({ key, parts }) => [key, [
        ...parts.filter(({ kind }) => kind !== 'tool').map(({ text }) => text),
        ...parts.filter(({ kind }) => kind === 'tool').map(({ state }) => state),
      ]])),
    runs: nodes.filter(({ kind }) => kind === 'run').map(({ key, status }) => [key, status]),
  });
  const views = new Set();
  for (let joined = 0; joined <= wire.length; joined += 1) {
    const before = new Log();
    for (const delivery of wire.slice(0, joined)) before.receive(delivery);
    const log = new Log();
    log.replace(before.messages.map(({ serial, version, name, data, transport, codec }) => ({
      action: 'message.update', serial, version: { serial: version }, name, data,
      extras: { ai: { transport, codec } },
    })));
    for (const delivery of wire.slice(joined)) log.receive(delivery);
    views.add(JSON.stringify(seen(fold(log.messages))));
  }
  return [...views].map((view) => JSON.parse(view));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as it:
        yield it


@pytest.fixture(scope="module")
def demo(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]
) -> Iterator[Demo]:
    """Keep one demo for all conversations, where there is a browser."""
    with chat_demo(tmp_path_factory.mktemp("chat"), environment) as it:
        yield it


@pytest.fixture
def page(browser: Browser, demo: Demo) -> Iterator[Page]:
    with pages(browser, RUN) as it:
        open_page(it, demo.url)
        yield it


def open_page(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.locator("#connection")).to_have_text("live")


def say(page: Page, words: str) -> None:
    page.get_by_label("Your message").fill(words)
    page.get_by_label("Your message").press("Enter")


def second_tab(page: Page) -> Page:
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Second tab").click()
    return opened.value


def wait_for(page: Page, status: str) -> None:
    page.locator(f"{RUN}[data-status={status}]").last.wait_for()


def kill(page: Page) -> None:
    """Kill the worker with the button, and return once another one works."""
    killed = page.locator("#workers li[data-state=killed]")
    before = killed.count()
    page.get_by_role("button", name="Kill the worker").click()
    expect(killed).to_have_count(before + 1)
    expect(page.locator("#workers li").last).to_contain_text("works")


def lengths_of_one_answer(page: Page, whole: str) -> list[int]:
    """Return how much of an answer was shown at each moment; nothing else ever was."""
    shown = ["".join(texts) for texts in moments(page)]
    assert [text for text in shown if not whole.startswith(text)] == []
    return [len(text) for text in shown]


def never_shrinks(lengths: list[int]) -> bool:
    return lengths == sorted(lengths)


def test_a_reload_in_the_middle_of_a_sentence_goes_on_where_it_is(page: Page) -> None:
    say(page, QUESTION)
    before = wait_for_characters(page, TEXT, HALF)
    page.reload()
    wait_for(page, "complete")
    lengths = lengths_of_one_answer(page, EXPLANATION)
    assert next(length for length in lengths if length) >= len(before)
    assert never_shrinks(lengths)
    assert len(set(lengths)) > 5  # it was streamed, and not shown at its end
    expect(page.locator("#transcript .said .words")).to_have_text(QUESTION)


def test_two_tabs_show_the_same_and_either_one_speaks_and_stops(page: Page) -> None:
    say(page, QUESTION)
    wait_for_characters(page, TEXT, HALF)
    other = second_tab(page)
    assert other.url == page.url
    wait_for_characters(other, TEXT, 2 * HALF)
    other.get_by_role("button", name="Stop").click()
    for tab in (page, other):
        wait_for(tab, "cancelled")
        expect(tab.locator(".ending")).to_have_text("Stopped.")
        assert never_shrinks(lengths_of_one_answer(tab, EXPLANATION))
    left = page.locator(TEXT).inner_text()
    assert HALF < len(left) < len(EXPLANATION)
    assert other.locator(TEXT).inner_text() == left
    say(other, COMPLAINT)
    for tab in (page, other):
        expect(tab.locator("#transcript .said .words")).to_have_text([QUESTION, COMPLAINT])
        tab.locator(".tool[data-state=asks]").wait_for()


def test_an_answer_goes_on_after_the_network_was_gone(browser: Browser, demo: Demo) -> None:
    with relay(demo.url) as way, pages(browser, RUN) as page:
        open_page(page, way.url)
        say(page, QUESTION)
        wait_for_characters(page, TEXT, HALF)
        way.cut()
        expect(page.locator("#connection")).to_have_text("reconnecting")
        known = page.locator(TEXT).inner_text()
        say(page, "Is anybody there?")
        expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
        assert page.locator(TEXT).inner_text() == known
        way.mend(after=3)
        expect(page.locator("#connection")).to_have_text("live")
        wait_for(page, "complete")
        assert never_shrinks(lengths_of_one_answer(page, EXPLANATION))
        expect(page.locator(TEXT)).to_have_text(EXPLANATION)
        expect(page.get_by_label("Your message")).to_have_value("Is anybody there?")


def test_what_a_killed_worker_wrote_is_replaced_and_never_shown_twice(page: Page) -> None:
    say(page, QUESTION)
    other = second_tab(page)
    for _ in range(2):
        wait_for_characters(other, TEXT, HALF)
        wait_for_characters(page, TEXT, HALF)
        kill(page)
        # The half answer has gone by now, or goes as soon as the step begins anew.
        expect(page.locator(TEXT)).not_to_have_text(re.compile(f"^.{{{HALF}}}"))
    wait_for(page, "complete")
    wait_for(other, "complete")
    for tab in (page, other):
        lengths = lengths_of_one_answer(tab, EXPLANATION)
        falls = [after for before, after in itertools.pairwise(lengths) if after < before]
        assert len(falls) == 2
        assert max(falls) < HALF  # the half answer went, and did not stay until it was whole
        expect(tab.locator(".attempt")).to_contain_text("Attempt 3")
        expect(tab.locator(TEXT)).to_have_text(EXPLANATION)


@pytest.mark.parametrize(
    ("decision", "state", "paid", "said"),
    [("Approve", "returned", 1, ANSWER), ("Deny", "denied", 0, REFUSED)],
)
def test_money_goes_back_once_if_it_is_approved_though_the_worker_is_killed(
    page: Page, demo: Demo, decision: str, state: str, paid: int, said: str
) -> None:
    before = demo.backstage()["refunds"]
    page.get_by_role("button", name=COMPLAINT).click()
    page.get_by_role("button", name=decision).click()
    page.get_by_role("button", name="Kill the worker").click()
    wait_for(page, "complete")
    expect(page.locator(TEXT).last).to_have_text(said)
    expect(page.get_by_role("region", name="refund_order")).to_have_attribute("data-state", state)
    expect(page.get_by_role("button", name=decision)).to_be_hidden()
    assert demo.backstage()["refunds"] - before == paid
    expect(page.locator("#refunds output")).to_have_text(str(before + paid))
    assert [texts for texts in moments(page) if "".join(texts).count(LOOKING) > 1] == []


def test_a_question_that_is_stopped_cannot_be_answered(page: Page, demo: Demo) -> None:
    before = demo.backstage()["refunds"]
    say(page, COMPLAINT)
    question = page.get_by_role("button", name="Approve")
    question.wait_for()
    wait_for(page, "suspended")
    page.get_by_role("button", name="Stop").click()
    wait_for(page, "cancelled")
    expect(question).to_be_hidden()
    expect(page.get_by_role("region", name="refund_order")).to_contain_text("was not answered")
    assert demo.backstage()["refunds"] == before


def test_a_message_is_edited_and_an_answer_asked_for_anew(page: Page) -> None:
    say(page, COMPLAINT)
    page.get_by_role("button", name="Stop").click()
    wait_for(page, "cancelled")
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Your message")).to_have_value(COMPLAINT)
    say(page, QUESTION)
    expect(page.locator("#transcript .said .words")).to_have_text([QUESTION])
    wait_for_characters(page, TEXT, HALF)
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Answer anew").click()
    wait_for(page, "complete")
    expect(page.locator(TEXT)).to_have_text([EXPLANATION])
    page.reload()
    expect(page.locator(TEXT)).to_have_text([EXPLANATION])


def test_what_is_said_is_never_markup(page: Page, demo: Demo) -> None:
    markup = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"
    say(page, markup)
    expect(page.locator("#transcript .said .words")).to_have_text(markup)
    assert page.locator("#transcript :is(img, b)").count() == 0
    assert page.title() == "perdure chat"
    with urllib.request.urlopen(demo.url) as reply:
        policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_page_folds_sessions_as_every_reader_does(page: Page) -> None:
    for vector in sorted(VECTORS.glob("*.expected.json")):
        wire = vector.with_suffix("").with_suffix(".wire.jsonl").read_text("utf-8").splitlines()
        view = json.loads(vector.read_text("utf-8"))["cold"]["view"]
        said = [[each["codecMessageId"], _words(each["message"])] for each in view["messages"]]
        runs = [[run["runId"], run["status"]] for run in view["runs"]]
        expected = {"messages": [each for each in said if each[1]], "runs": runs}
        assert page.evaluate(_FOLD, [json.loads(line) for line in wire]) == [expected], vector.name


def _words(message: dict[str, Any]) -> list[str]:
    """Return the texts of a message, and the states of its tools."""
    parts = message["parts"]
    words = [part["text"] for part in parts if part["type"] in ("text", "reasoning")]
    return words + [_STATES[part["state"]] for part in parts if "toolCallId" in part]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/backstage/kill", {"content-type": "text/plain"}, 415),
        ("/backstage", {"host": "elsewhere.example"}, 400),
        ("/page/../site.py", {}, 404),
    ],
)
def test_pages_of_others_get_nowhere(
    demo: Demo, path: str, headers: dict[str, str], status: int
) -> None:
    data = b"{}" if "content-type" in headers else None
    asked = urllib.request.Request(demo.url + path, data, headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked)
    with refused.value as reply:
        assert reply.code == status
