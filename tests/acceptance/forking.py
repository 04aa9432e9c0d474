"""A process that pays with `guard_sync` and forks, as a server with workers does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import perdure.storage.sqlite  # noqa: F401 - so that a fork has it
from perdure.effects.identity import OperationIdentity
from perdure.errors import EffectError, EngineClosed
from perdure.receipts import ReceiptStore, guard
from perdure.sync import guard_sync
from perdure.testing.crash import CrashAt, CrashPoints
from tests.acceptance.children import note, notes, until

_LIMIT_SECONDS = 60


class Till:
    """Where a process pays: it notes what it charges and what came of it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.store = ReceiptStore(f"sqlite:///{folder}/receipts.db", **options)

    def pay(self, invoice: str, then: Callable[[], None] = lambda: None) -> None:
        def send(identity: OperationIdentity) -> str:
            note(self.folder / "charges.log", invoice=invoice)
            then()
            return invoice

        identity = OperationIdentity(invoice, "charge", "bank")
        try:
            outcome = guard_sync(self.store, identity, send)
        except EffectError as error:
            outcome = type(error).__name__
        note(self.folder / "outcomes.log", invoice=invoice, outcome=outcome)


def serve(folder: Path) -> None:
    """Fork between two payments, and be killed in the second; the child goes on."""
    till = Till(folder)
    till.pay("before")
    if os.fork():
        till.pay("during", signal.pause)
    signal.alarm(_LIMIT_SECONDS)
    until(lambda: notes(folder / "charges.log", invoice="during"))
    for invoice in ("before", "during", "after"):
        till.pay(invoice)
    note(folder / "forked.log")
    until(lambda: notes(folder / "killed.log"))
    till.pay("during")
    note(folder / "ended.log")
    os._exit(0)


def part(folder: Path) -> None:
    """Fork, and close the receipts while the child uses them."""
    till = Till(folder)
    till.pay("before")
    child = os.fork()
    if child:
        until(lambda: notes(folder / "charges.log", invoice="first"))
        till.store.close_sync()
        note(folder / "closed.log")
        os.waitpid(child, 0)
        return
    till.pay("first")
    until(lambda: notes(folder / "closed.log"))
    till.pay("invoice")
    os._exit(0)


def fork_in_a_payment(folder: Path) -> None:
    """Fork children in the middle of a payment: one pays, and one takes the payment for its own."""
    till = Till(folder)

    def fork() -> None:
        paying = os.fork()
        if not paying:
            try:
                till.pay("other")
            except EngineClosed:
                os._exit(11)
        returning = os.fork()
        if returning:
            codes = [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in (paying, returning)]
            note(folder / "children.log", codes=codes)

    process = os.getpid()
    try:
        till.pay("during", fork)
    except EngineClosed:
        os._exit(12 if os.getpid() != process else 13)


def fork_in_a_loop(folder: Path) -> None:
    """Fork where an event loop uses the receipts; neither process can close them for the other."""

    async def send(identity: OperationIdentity) -> str:
        note(folder / "charges.log", invoice=identity.run_id)
        return identity.run_id

    async def main() -> None:
        async with ReceiptStore.open(f"sqlite:///{folder}/receipts.db") as store:
            child = os.fork()
            invoice = "parent" if child else "child"
            try:
                await guard(store, OperationIdentity(invoice, "charge", "bank"), send)
            except EngineClosed:
                os._exit(14)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            note(folder / "children.log", codes=[code])

    asyncio.run(main())


def pay(folder: Path, crash: tuple[str, int] | None) -> None:
    """Pay once, and be killed at a point."""
    till = Till(folder, probe=CrashAt(*crash) if crash else None)
    till.pay("invoice")
    till.store.close_sync()


def list_points(folder: Path) -> None:
    """Pay once and write how to be killed at each point that was passed."""
    points = CrashPoints()
    till = Till(folder, probe=points)
    till.pay("invoice")
    till.store.close_sync()
    (folder / "crashes").write_text(json.dumps(points.crashes()))
