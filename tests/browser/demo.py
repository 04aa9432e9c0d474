"""The demo's chat, as somebody starts it from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.browser.chromium import PATIENCE_SECONDS


class Demo:
    """A demo that serves its page at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def backstage(self) -> dict[str, Any]:
        """Return what the page shows beside the conversation."""
        with urllib.request.urlopen(f"{self.url}/backstage") as reply:
            return json.load(reply)

    def kill(self) -> None:
        """Kill the worker, as the button of the page does."""
        headers = {"content-type": "application/json"}
        asked = urllib.request.Request(f"{self.url}/backstage/kill", b"{}", headers)
        with urllib.request.urlopen(asked) as reply:
            assert json.load(reply) == {"killed": True}


@contextmanager
def chat_demo(folder: Path, environment: dict[str, str]) -> Iterator[Demo]:
    """Keep a demo, and check that it leaves nothing behind: no process and no file."""
    words = ["demo", "--chat", "--no-open", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", *words],
        env={**environment, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    limit = threading.Timer(PATIENCE_SECONDS, process.kill)
    limit.start()
    try:
        started = json.loads(process.stdout.readline())
        limit.cancel()
        demo = Demo(started["url"])
        yield demo
        pids = [worker["pid"] for worker in demo.backstage()["workers"]]
    finally:
        limit.cancel()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, json.loads(said)) == (0, {"event": "stopped"})
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert [path for path in folder.iterdir() if "perdure" in path.name] == []
