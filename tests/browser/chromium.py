"""Chromium, driven as a person would; and what was on its pages at every moment."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.services import lacking

PATIENCE_SECONDS = 60.0

_PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
_RECORDER = """
window.moments = [];
new MutationObserver(() => {
  const words = (each) => [...each.querySelectorAll('.text')].map((part) => part.textContent);
  const texts = [...document.querySelectorAll('SELECTOR')].map((each) => words(each).join(''));
  if (texts.join() !== window.moments.at(-1)?.join()) window.moments.push(texts);
}).observe(document, {subtree: true, childList: true, characterData: true});
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Keep a browser, or skip the test where there is none: see `lacking`."""
    found = next((path for name in _PROGRAMS if (path := shutil.which(name))), None)
    with sync_playwright() as playwright:
        path = Path(found or playwright.chromium.executable_path)
        if not path.exists():
            lacking(
                "needs Chromium: install it, such as Debian's package chromium-headless-shell, or"
                " the one of `playwright install chromium`"
            )
        expect.set_options(timeout=PATIENCE_SECONDS * 1000)
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@contextmanager
def pages(browser: Browser, record: str) -> Iterator[Page]:
    """Keep a page that records the text in each thing that `record` selects, at every change.

    What goes wrong in the page fails the test. `page.context.new_page()` is another tab.
    """
    faults: list[str] = []
    with browser.new_context() as context:
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        context.add_init_script(_RECORDER.replace("SELECTOR", record))
        context.on("weberror", lambda error: faults.append(str(error.error)))
        yield context.new_page()
    assert faults == []


def moments(page: Page) -> list[list[str]]:
    """Return what was recorded since the page was loaded: for each moment, a list of texts."""
    return page.evaluate("window.moments")


def wait_for_characters(page: Page, selector: str, count: int) -> str:
    """Return the text of the last of some elements as soon as it is so long."""
    long = re.compile(f"(.|\n){{{count}}}")
    found = page.locator(selector).last.and_(page.locator(selector, has_text=long))
    found.wait_for()
    return found.inner_text()
