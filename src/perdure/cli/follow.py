from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from perdure import ReceiptStore
from perdure.cli.dossier import DECISIONS, describe_decision
from perdure.cli.exits import Exit
from perdure.cli.receipt import describe_receipt, risk_of, short_key, what_of
from perdure.cli.screen import Screen
from perdure.cli.target import receipts_of, store_of
from perdure.cli.words import instant, moment, number_of
from perdure.effects.receipt import Change, Receipt, ReceiptState
from perdure.effects.store import DecisionRow

_PAUSE_SECONDS: Final = 0.2


class Event(msgspec.Struct, frozen=True):
    """Something that became of an effect; `decision` is the person's who made it so."""

    name: str
    at: float
    words: str
    receipt: Receipt
    decision: DecisionRow | None = None


async def watch(options: argparse.Namespace, screen: Screen) -> Exit:
    """Tell of every change of a receipt until interrupted, or for some time."""
    end = float("inf") if options.seconds is None else time.monotonic() + options.seconds
    async with receipts_of(store_of(options)) as store:
        follow = Follow(store, options.run)
        screen.note(await follow.begin())
        while True:
            left = end - time.monotonic()
            await asyncio.sleep(max(0.0, min(left, _PAUSE_SECONDS)))
            await follow.tell(screen)
            if left <= 0:
                return Exit.OK


class Follow:
    """Tells what becomes of the effects of a store, or of one run, from look to look."""

    def __init__(self, store: ReceiptStore, run_id: str | None = None) -> None:
        self._store = store
        self._run_id = run_id

    async def begin(self) -> str:
        """Look for the first time, and say what is open then."""
        self._watch = await self._store.watch()
        states = [receipt.state for receipt in await self._watch.begin() if self._of_run(receipt)]
        flying = states.count(ReceiptState.IN_FLIGHT)
        return (
            f"watching {self._store.shown_url}: {number_of(flying, 'effect')} in flight,"
            f" {len(states) - flying} ambiguous; Ctrl-C ends it"
        )

    async def tell(self, screen: Screen) -> None:
        """Write what has changed since the last look, oldest first."""
        events = [
            event for change in await self._watch.look() for event in await self._read(change)
        ]
        for event in sorted(events, key=lambda event: event.at):
            screen.document(_document(event))
            screen.line(_line(event))

    async def _read(self, change: Change) -> list[Event]:
        receipt = change.after
        if not self._of_run(receipt):
            return []
        decision = None
        if receipt.decided_by is not None:
            made = await self._store.decisions(receipt.operation_key)
            of_attempt = [each for each in made if each.attempt == receipt.attempt]
            decision = of_attempt[-1] if of_attempt else None
        return [*events_of(change, decision, time.time())]

    def _of_run(self, receipt: Receipt) -> bool:
        return self._run_id is None or receipt.run_id == self._run_id


def events_of(change: Change, decision: DecisionRow | None, now: float) -> Iterator[Event]:
    """Yield what a change tells; of attempts before the last one it tells nothing.

    `decision` is the one about the last attempt, if there is one, and `now` the time of the look,
    which stands for times that no receipt has.
    """
    before, after = change.before, change.after
    begun = before is None or before.attempt != after.attempt
    moved = begun or (before is not None and before.state is not after.state)
    if begun:
        yield Event("claimed", after.claimed_at, _claimed(after), after)
    if moved and after.settled_at is not None:
        yield _settled(after, decision)
    if after.state is ReceiptState.AMBIGUOUS:
        if not moved or after.lookups or after.lookup_holder:
            yield _asked(after, now)
    elif not moved:
        yield Event("duplicate", now, risk_of(after), after)


def _claimed(receipt: Receipt) -> str:
    again = "" if receipt.attempt == 1 else f", attempt {receipt.attempt}"
    risk = f"; {risk_of(receipt)}" if risk_of(receipt) else ""
    return f"claimed by {receipt.holder}{again}{risk}"


def _settled(receipt: Receipt, decision: DecisionRow | None) -> Event:
    at = receipt.settled_at or receipt.claimed_at
    state = receipt.state
    name = state.value
    landed = state is ReceiptState.COMPLETED
    if decision is not None and (decision.decision == "landed") == landed:
        says = f"{decision.decided_by} says that {DECISIONS[decision.decision]}"
        return Event(name, at, f"{name}: {says}: {decision.decided_why}", receipt, decision)
    words = name if receipt.problem is None else f"{name}: {receipt.problem}"
    if state is not ReceiptState.FAILED and receipt.residual_duplicate_risk:
        words = f"{words}; {risk_of(receipt)}"
    return Event(name, at, words, receipt)


def _asked(receipt: Receipt, now: float) -> Event:
    if receipt.lookup_holder is not None:
        return Event("asking", now, f"being asked by {receipt.lookup_holder}", receipt)
    count = number_of(receipt.lookups, "lookup")
    if receipt.exhausted:
        words = f"{count} without an answer, exhausted: a person has to say"
        return Event("exhausted", now, words, receipt)
    return Event(
        "asked",
        now,
        f"asked, {count} without an answer; next from {moment(receipt.lookup_at)}",
        receipt,
    )


def _document(event: Event) -> dict[str, Any]:
    decision = event.decision
    return {
        "event": event.name,
        "at": instant(event.at),
        "receipt": describe_receipt(event.receipt),
        "decision": None if decision is None else describe_decision(decision),
    }


def _line(event: Event) -> str:
    receipt = event.receipt
    where = f"{receipt.run_id} {what_of(receipt)} on {receipt.target}"
    return f"{moment(event.at)}  {short_key(receipt)}  {where}: {event.words}"
