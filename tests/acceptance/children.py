"""Child processes for tests that kill: each is fresh, and costs a fork instead of an import."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.storages import held, is_dispatched, look, on_server

_STORES = {"runs.db", "receipts.db"}
_PATIENCE_SECONDS = 60.0
_fresh = multiprocessing.get_context("forkserver")
# A process that has loaded no agents is forked in half the time.
_plain, _agents, _dispatched = (forkserver.ForkServer() for _ in range(3))
_PLAIN = [
    "pytest",
    "perdure.storage.postgres",
    "tests.acceptance.payer",
    "tests.acceptance.run_payer",
    "tests.acceptance.forking",
    "tests.acceptance.test_parked_effects",
    "tests.acceptance.test_recovery",
    "tests.acceptance.test_turn_kills",
    "tests.acceptance.test_two_workers",
    "tests.acceptance.waiting_runs",
]
_AGENTS = ["pytest", "perdure.storage.postgres", "tests.acceptance.turn", "tests.acceptance.warm"]
_plain.set_forkserver_preload(_PLAIN)
_agents.set_forkserver_preload(_AGENTS)
_dispatched.set_forkserver_preload(
    [*_PLAIN, *_AGENTS, "perdure.runtimes.temporal.dispatcher", "tests.acceptance.dispatched"]
)
_WITH_AGENTS = {
    f"tests.acceptance.{name}"
    for name in (
        "mcp_counter",
        "mcp_depot",
        "mcp_run",
        "test_readme",
        "tool_turn",
        "turn",
        "waiting_turn",
    )
}


# multiprocessing looks after its children in every call, and two threads may not do that at once.
_lock = threading.Lock()


class Child:
    """A process that runs one function of a test; what it prints to stderr is kept in a file."""

    def __init__(
        self, folder: Path, target: Callable[..., None], *arguments: Any, **options: Any
    ) -> None:
        self._log = folder / f"{target.__name__}-{time.monotonic_ns()}.log"
        self._process: BaseProcess = _fresh.Process(
            target=_run, args=(self._log, target, arguments, options), daemon=True
        )
        server = _agents if target.__module__ in _WITH_AGENTS else _plain
        server = _dispatched if is_dispatched(folder) else server
        with _lock:
            forkserver.connect_to_new_process = server.connect_to_new_process
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """What becomes ready to read when the process ends."""
        return self._process.sentinel

    @property
    def alive(self) -> bool:
        with _lock:
            return self._process.exitcode is None

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the end and return the exit code; minus the signal for a killed one."""
        wait([self.sentinel], _PATIENCE_SECONDS)
        with _lock:
            code = self._process.exitcode
        if code is None:
            self.kill()
            raise AssertionError(f"the child did not end:\n{self.said()}")
        return code

    def succeed(self) -> None:
        code = self.wait()
        assert code == 0, f"the child ended with {code}:\n{self.said()}"

    def die(self) -> None:
        """Wait for the child to kill itself."""
        code = self.wait()
        assert code == -signal.SIGKILL, f"the child ended with {code}:\n{self.said()}"

    def kill(self) -> None:
        with _lock:
            if self._process.exitcode is None:
                self._process.kill()
                self._process.join()

    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


@contextmanager
def running(
    folder: Path, target: Callable[..., None], *arguments: Any, **options: Any
) -> Iterator[Child]:
    """Run a child for as long as the block, at most."""
    child = Child(folder, target, *arguments, **options)
    try:
        yield child
    finally:
        child.kill()


def run(folder: Path, target: Callable[..., None], *arguments: Any) -> None:
    """Run a child to its good end."""
    with running(folder, target, *arguments) as child:
        child.succeed()


def until_ended(children: Sequence[Child], seconds: float) -> None:
    """Wait for the end of all of these, and no longer than so many seconds."""
    ends = time.monotonic() + seconds
    alive = {child.sentinel for child in children}
    while alive and (left := ends - time.monotonic()) > 0:
        alive -= {*wait(alive, left)}


def until(happened: Callable[[], Any], *children: Child) -> None:
    """Wait for something to happen while these children live."""
    began = time.monotonic()
    while not happened():
        for child in children:
            assert child.alive or happened(), f"the child ended:\n{child.said()}"
        assert time.monotonic() - began < _PATIENCE_SECONDS, "waited in vain"
        time.sleep(0.005)


def note(log: Path, **what: Any) -> None:
    """Append a line for others to see; one that was written survives any crash of its writer."""
    line = json.dumps({**what, "pid": os.getpid(), "at": time.monotonic()}) + "\n"
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def notes(log: Path, **matching: Any) -> list[dict[str, Any]]:
    """Return the noted lines that have these values."""
    if not log.exists():
        return []
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if matching.items() <= line.items()]


def query(database: Path, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Look from outside into a database, or into what stands for it at a server."""
    if database.name in _STORES and on_server(database.parent):
        return look(database.parent, statement, *parameters)
    connection = sqlite3.connect(database, timeout=30)
    try:
        return connection.execute(statement, parameters).fetchall()
    finally:
        connection.close()


def freeze(child: Child, database: Path) -> None:
    """Stop a process, but not where it holds the write lock of a database, which stops all."""
    while True:
        child.signal(signal.SIGSTOP)
        with held(database.parent, wait=False, file=database.name) as free:
            if free:
                return
        child.signal(signal.SIGCONT)
        time.sleep(0.02)


def _run(
    log: Path,
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(descriptor, sys.stderr.fileno())
    target(*arguments, **options)
