"""Programs that a row starts, talks to in JSON lines, and ends by their process id."""

from __future__ import annotations

import importlib
import json
import os
import selectors
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_ROOT = Path(__file__).parents[1]


class Child:
    """A process of its own that runs the function `child` of a row's module.

    Leaving the block kills it, if it still lives, and waits for it. What it says to stderr is
    added to the file `errors`, where one is given.
    """

    def __init__(self, module: object, *arguments: object, errors: Path | None = None) -> None:
        command = [sys.executable, "-m", "benchmarks.child", str(module), *map(str, arguments)]
        with errors.open("ab") if errors else nullcontext() as log:
            self._process = subprocess.Popen(
                command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=log, bufsize=0, env=environment()
            )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self._pending = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def hear(self, seconds: float = 60.0) -> Any:
        """Wait for the next line that the child says and return what it holds."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"a child said nothing for {seconds:.0f} s")
                data = os.read(self._output.fileno(), 65536)
                if not data:
                    raise RuntimeError(f"a child ended with {self._process.wait()}")
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)

    def kill(self) -> None:
        """Send SIGKILL to this process and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    def end(self, seconds: float = 60.0) -> None:
        """Wait until this process ends by itself."""
        self._process.wait(seconds)
        self._output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


def say(document: Any) -> None:
    """Tell the parent one line."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def environment() -> dict[str, str]:
    """Return the environment of a child: this one's, and compiled modules may be kept."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


if __name__ == "__main__":
    importlib.import_module(f"benchmarks.{sys.argv[1]}").child(*sys.argv[2:])
