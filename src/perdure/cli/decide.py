from __future__ import annotations

import argparse

from perdure import ReceiptStore
from perdure.app import App
from perdure.cli.exits import Exit
from perdure.cli.receipt import describe_receipt, find_receipt, is_call
from perdure.cli.runs import describe
from perdure.cli.screen import Screen
from perdure.cli.target import looked_into, receipts_of
from perdure.cli.typed import read_json, signed
from perdure.effects.answer import Decision, Landed, NeverWill, SendAgain
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.engine.store import RunRow, RunState
from perdure.errors import CommandError


async def settle(options: argparse.Namespace, screen: Screen) -> Exit:
    """Write what a person decided about an effect of which nobody knows."""
    _check_complete(options, screen.place)
    decision = _decision(options)
    by, why = signed(options)
    async with looked_into(options) as app, receipts_of(app) as store:
        receipt = await find_receipt(store, options.key)
        before = await app.store.read_run(receipt.run_id)
        if isinstance(decision, Landed):
            decision = _checked(app, store, receipt, decision)
        settled = await store.settle(
            receipt.operation_key, decision, by=by, why=why, expect_version=options.expect_version
        )
        run = await app.store.read_run(receipt.run_id)
    freed = _parked(before) and not _parked(run)
    screen.document(
        {
            "receipt": describe_receipt(settled),
            "run": None if run is None else describe(run),
            "freed": freed,
        }
    )
    screen.line(f"effect {settled.operation_key} is {settled.state.value}, as {by} decided")
    screen.line(_what_follows(settled, run if freed else None))
    return Exit.OK


def _check_complete(options: argparse.Namespace, place: str) -> None:
    """Raise `CommandError` that names all that is missing at once."""
    decided = options.landed is not None or options.did_not_land or options.retry
    missing = [
        name
        for name, given in (
            ("KEY", options.key is not None),
            ("one of --landed JSON, --did-not-land and --retry", decided),
            ("--why TEXT", options.why is not None),
            ("--expect-version N", options.expect_version is not None),
        )
        if not given
    ]
    if missing:
        raise CommandError(
            f"to settle an effect takes {', '.join(missing)} too; `perdure effects show"
            f" {options.key or 'KEY'}{place}` says what to type"
        )


def _decision(options: argparse.Namespace) -> Decision:
    if options.landed is not None:
        return Landed(read_json(options.landed, "answer"))
    return NeverWill() if options.did_not_land else SendAgain()


def _checked(app: App, store: ReceiptStore, receipt: Receipt, said: Landed) -> Landed:
    """Return what landed as the instances that the function returns, where the App knows it.

    Raises `InvalidPayload` for what that could never return.
    """
    if receipt.handler_id is None or not is_call(receipt):
        return said
    store.codec = app.engine.codec  # which knows their classes
    return Landed(app.engine.answer_from_json(receipt.handler_id, said.result))


def _parked(run: RunRow | None) -> bool:
    return run is not None and run.state is RunState.NEEDS_ATTENTION


def _what_follows(receipt: Receipt, freed: RunRow | None) -> str:
    """Say what the decision leads to."""
    landed = receipt.state is ReceiptState.COMPLETED
    if freed is not None:
        then = "with this answer" if landed else "and sends it again"
        return f"run {freed.run_id} goes on {then} when a worker serves it"
    return f"whoever asks for it next {'gets this answer' if landed else 'sends it again'}"
