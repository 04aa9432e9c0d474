from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from perdure import ReceiptStore, SideEffectSupport
from perdure.app import App
from perdure.cli.place import placed
from perdure.cli.receipt import (
    describe_receipt,
    find_receipt,
    is_call,
    risk_of,
    since_of,
    what_of,
)
from perdure.cli.runs import describe
from perdure.cli.sheet import plain
from perdure.cli.words import abridged, instant, moment
from perdure.codec.readable import readable
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.effects.store import DecisionRow
from perdure.engine.store import RunRow

DECISIONS: Final = {
    "landed": "it landed",
    "never_will": "it did not land",
    "send_again": "it may be sent again",
}
"""What each decision of a person says."""

_SETTLING: Final = {
    "--landed JSON": "it was applied, and JSON is its answer",
    "--did-not-land": "it was not applied and never will be",
    "--retry": "nobody can tell: send it again",
}


class Dossier(msgspec.Struct, frozen=True):
    """Everything known of one effect at one time, in wall seconds.

    `run` is None where the database has no run of that id, `worker` where nobody knows the name of
    the worker that made the last attempt. `input_json` is what the operation was asked, if it is
    recorded.
    """

    receipt: Receipt
    decisions: Sequence[DecisionRow]
    run: RunRow | None
    worker: str | None
    input_json: bytes | None
    read_at: float

    @property
    def undecided(self) -> bool:
        """Whether a person may settle it."""
        return self.receipt.state is ReceiptState.AMBIGUOUS


async def read_dossier(app: App, store: ReceiptStore, key: str) -> Dossier:
    """Read all that is known of the effect of a key, or of the beginning of one."""
    receipt = await find_receipt(store, key)
    return Dossier(
        receipt,
        await store.decisions(receipt.operation_key),
        await app.store.read_run(receipt.run_id),
        await _worker(app, receipt),
        await _input(app, receipt),
        time.time(),
    )


async def _worker(app: App, receipt: Receipt) -> str | None:
    known = {worker.holder: worker.name for worker in await app.store.list_workers()}
    attempts = await app.store.list_attempts(receipt.run_id)
    known.update({attempt.holder: attempt.worker for attempt in attempts if attempt.worker})
    return known.get(receipt.holder)


async def _input(app: App, receipt: Receipt) -> bytes | None:
    place = receipt.idempotency_key, receipt.ordinal
    for row in await app.store.list_operations(receipt.run_id):
        if (row.step_id, row.sequence) == place and row.input_sha256 == receipt.arguments_sha256:
            return await app.store.read_input(receipt.run_id, *place)
    return None


# --- for programs --------------------------------------------------------------------------------


def document(dossier: Dossier, place: str) -> dict[str, Any]:
    """Return a dossier as a JSON document shows it; `place` names the database in commands."""
    run, asked = dossier.run, dossier.input_json
    return {
        "receipt": describe_receipt(dossier.receipt),
        "resend_allowed": _resend(dossier)[0],
        "decisions": [describe_decision(decision) for decision in dossier.decisions],
        "worker": dossier.worker,
        "run": None if run is None else describe(run),
        "input": None if asked is None else msgspec.Raw(asked),
        "commands": commands(dossier.receipt, place) if dossier.undecided else [],
    }


def describe_decision(decision: DecisionRow) -> dict[str, Any]:
    """Return a person's decision as a JSON document shows it."""
    return {
        "decision": decision.decision,
        "attempt": decision.attempt,
        "version": decision.version,
        "by": decision.decided_by,
        "why": decision.decided_why,
        "at": instant(decision.decided_at),
    }


def commands(receipt: Receipt, place: str) -> list[str]:
    """Return the command lines that settle a receipt; JSON and WHY are to be filled in."""
    start = f"perdure effects settle {receipt.operation_key}{place}"
    end = f"--why WHY --expect-version {receipt.version}"
    return [f"{start} {said} {end}" for said in _SETTLING]


# --- for people ----------------------------------------------------------------------------------


def facts(dossier: Dossier, place: str) -> str:
    """Return a dossier as lines of text; `place` names the database in commands."""
    receipt = dossier.receipt
    lines = [f"effect {receipt.operation_key}"]
    lines += [f"  {name:<11}{plain(value)}" for name, value in _facts(dossier, place) if value]
    for title, content in (("asked for", dossier.input_json), ("answer", receipt.payload)):
        if content:
            lines += ["", title, msgspec.json.format(readable(content), indent=2).decode()]
    if dossier.undecided:
        lines += ["", "to settle it, look at the target and type one of these"]
        lines += told(receipt, place)
    return "\n".join(lines)


def told(receipt: Receipt, place: str) -> list[str]:
    """Return the commands that settle a receipt as lines that say what each means."""
    meanings = zip(commands(receipt, place), _SETTLING.values(), strict=True)
    lines = [f"  {command}  # {meaning}" for command, meaning in meanings]
    if is_call(receipt) and not _names_app(place):
        lines.append(
            "  # with --app MODULE:APP instead, JSON is compared with what the function returns"
        )
    return lines


def _names_app(place: str) -> bool:
    return "--app" in shlex.split(place)


def decided(decision: DecisionRow) -> str:
    """Return a person's decision as text."""
    at = f"attempt {decision.attempt}, version {decision.version}, {moment(decision.decided_at)}"
    says = f"{decision.decided_by} says that {DECISIONS[decision.decision]}"
    return f"{says} ({at}): {decision.decided_why}"


def _facts(dossier: Dossier, place: str) -> Iterator[tuple[str, str]]:
    receipt = dossier.receipt
    yield "state", f"{receipt.state.value} since {moment(since_of(receipt))}"
    yield "run", f"{receipt.run_id}, {placed(_state_of(dossier.run), place)}"
    yield "what", what_of(receipt)
    yield "target", receipt.target
    yield "handler", receipt.handler_id or ""
    yield "support", receipt.support.value
    first = f", the first {moment(receipt.first_claimed_at)}" if receipt.attempt > 1 else ""
    yield "attempt", f"{receipt.attempt}, begun {moment(receipt.claimed_at)}{first}"
    worker = "" if dossier.worker is None else f", worker {dossier.worker}"
    claim = f", attempt {receipt.generation} of the run" if receipt.generation else ""
    yield "owner", f"{receipt.holder}{worker}{claim}"
    yield "problem", receipt.problem or ""
    yield "lookups", _lookups(receipt)
    yield "re-send", _resend(dossier)[1]
    yield "risk", risk_of(receipt)
    for decision in dossier.decisions:
        yield "decided", decided(decision)
    yield "version", str(receipt.version)
    yield "arguments", f"SHA-256 {receipt.arguments_sha256.hex()}"


def _state_of(run: RunRow | None) -> str:
    if run is None:
        return "which is no run in this database"
    why = "" if run.problem is None else f": {abridged(run.problem.message)}"
    return f"which is {run.state.value}{why}"


def _lookups(receipt: Receipt) -> str:
    count = f"{receipt.lookups} without an answer" if receipt.lookups else ""
    if receipt.state is not ReceiptState.AMBIGUOUS:
        return count
    if receipt.lookup_holder is not None:
        until = moment(receipt.lookup_at)
        then = f"being asked by {receipt.lookup_holder} until {until} at most"
    elif receipt.exhausted:
        then = "exhausted: a person has to say"
    elif receipt.support is SideEffectSupport.OUTCOME_QUERYABLE:
        then = f"next from {moment(receipt.lookup_at)}"
    else:
        then = ""
    return f"{count}, {then}" if count and then else count or then


def _resend(dossier: Dossier) -> tuple[bool | None, str]:
    """Return whether an ambiguous effect may be sent again, and that as text; None for others."""
    receipt = dossier.receipt
    if not dossier.undecided:
        return None, ""
    match receipt.support:
        case SideEffectSupport.AT_LEAST_ONCE:
            return False, "only if a person or its policy lets it"
        case SideEffectSupport.IDEMPOTENT:
            return True, "allowed under the same key, for as long as the target knows it"
        case SideEffectSupport.OUTCOME_QUERYABLE:
            end = receipt.resend_after
            if end is None:
                return False, "only if a person lets it: nobody knows when its attempt has ended"
            ended = end <= dossier.read_at
            when = f"allowed {'since' if ended else 'from'} {moment(end)}"
            return ended, f"{when}, if the target has not seen it"
