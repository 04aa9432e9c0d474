"""A worker of the chat: `python -m perdure.demo.chat.worker NAME FOLDER [MODEL]`.

It loads everything, executes runs once a line arrives on stdin, says so in a line on stdout, and
ends when stdin is closed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from perdure import App
from perdure.demo.chat.support import build_app


def main(name: str, folder: Path, model: str | None) -> None:
    """Wait for the word, and execute runs until nobody is there any more."""
    app = build_app(folder, model=model, name=name)
    if sys.stdin.readline():
        asyncio.run(_work(app))


async def _work(app: App) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with app:
        os.write(sys.stdout.fileno(), b"working\n")
        await reader.read()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
