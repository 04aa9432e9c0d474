"""Takes the pictures of docs/chat.md: `uv run --with pillow python -m tests.browser.pictures`."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page

from tests.browser.chromium import chromium, wait_for_characters
from tests.browser.demo import chat_demo

FOLDER = Path(__file__).parents[2] / "docs" / "images"
TEXT = "#transcript .text"
COLOURS = 96


def main() -> None:
    """Kill a worker, and ask for an approval, in one scheme of colours each."""
    with (
        tempfile.TemporaryDirectory() as folder,
        chat_demo(Path(folder), {**os.environ}) as demo,
        chromium() as browser,
    ):
        page = _open(browser, demo.url, "light", 620)
        page.get_by_role("button", name="What happens").click()
        wait_for_characters(page, TEXT, 250)
        page.get_by_role("button", name="Kill the worker").click()
        page.locator(".attempt").wait_for()
        wait_for_characters(page, TEXT, 300)
        _keep(page, "chat-killed.png")
        page = _open(browser, demo.url, "dark", 940)
        page.get_by_role("button", name="My lamp").click()
        page.get_by_role("button", name="Approve").wait_for()
        page.locator(".run[data-status=suspended]").wait_for()
        _keep(page, "chat-approval.png")


def _open(browser: Browser, url: str, scheme: Literal["light", "dark"], height: int) -> Page:
    page = browser.new_page(color_scheme=scheme, viewport={"width": 1040, "height": height})
    page.goto(url)
    page.locator("#workers li[data-state=working]").wait_for()
    return page


def _keep(page: Page, name: str) -> None:
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    FOLDER.mkdir(exist_ok=True)
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(FOLDER / name, optimize=True)


if __name__ == "__main__":
    main()
