"""Every promise of a runtime, kept by the one inside of runs; and what breaks one is found."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

import pytest

from perdure import Context, PerdureError, RunParked, RunState
from perdure.errors import DuplicateOperation, RuntimeRecordMismatch
from perdure.journal import Handlers, Invocation, Outcome, Record, Success
from perdure.journal.failures import failure_of
from perdure.journal.handlers import Worker
from perdure.journal.record import check_outcome
from perdure.runtimes.embedded import EmbeddedRuntime
from perdure.testing.runtime import Code, Host, RuntimeCheck, checks
from tests.harness import RUN, app_on, run

T = TypeVar("T")
CHECKS = {check.name: check for check in checks()}


def inside_of_a_run(folder: Path) -> Host:
    """Return what calls code inside of executions of one run, which never ends."""

    async def host(handlers: Handlers, code: Code[T]) -> T:
        app = app_on(folder)
        told: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        @app.run(version=1)
        async def work(context: Context) -> None:
            try:
                told.set_result(await code(EmbeddedRuntime(context, handlers), RUN))
            except RunParked as parked:
                told.set_exception(parked.cause)
                raise
            except Exception as error:  # noqa: BLE001 - told to who asks
                told.set_exception(error)
            await asyncio.Event().wait()

        async with app:
            handle = await app.start(work, run_id=RUN)
            if await handle.status() is RunState.NEEDS_ATTENTION:
                await app.resume(RUN)
            return await told

    return host


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
def test_the_runtime_inside_of_runs_keeps_its_promises(tmp_path: Path, check: RuntimeCheck) -> None:
    run(check(inside_of_a_run(tmp_path)))


class Shelf:
    """A runtime that keeps its records in memory, and does one thing otherwise if it is told to."""

    def __init__(self, handlers: Handlers, kept: dict[str, Record], broken: str = "") -> None:
        self._handlers = handlers
        self._kept = kept
        self._broken = broken
        self._under_way: set[str] = set()

    async def execute(self, invocation: Invocation) -> Record:
        if self._broken != "unchecked":
            invocation.validate()
        key = invocation.stable_key
        known = self._kept.get(key)
        if known is not None and self._broken != "again":
            return self._checked(known, invocation)
        if key in self._under_way and self._broken != "together":
            raise DuplicateOperation(key)
        handler_id = "model" if self._broken == "first" else invocation.handler_id
        worker = self._handlers.lookup(invocation.kind, handler_id)
        self._under_way.add(key)
        record = Record(invocation, await self._outcome(worker, invocation))
        if self._broken != "successes" or isinstance(record.outcome, Success):
            self._kept[key] = record
        return record

    async def _outcome(self, worker: Worker, invocation: Invocation) -> Outcome:
        try:
            outcome = await worker(invocation)
            if self._broken != "any size":
                check_outcome(invocation.stable_key, outcome)
        except Exception as error:  # noqa: BLE001 - an outcome of it
            return failure_of(error)
        return outcome

    def _checked(self, known: Record, invocation: Invocation) -> Record:
        there = known.invocation
        if self._broken == "input" and there.input_json != invocation.input_json:
            return Record(invocation, known.outcome)
        if self._broken == "kind" and there.kind != invocation.kind:
            return Record(invocation, known.outcome)
        if self._broken == "handler" and there.handler_id != invocation.handler_id:
            return Record(invocation, known.outcome)
        if there != invocation:
            raise RuntimeRecordMismatch(invocation.stable_key)
        return known


def on_a_shelf(broken: str = "") -> Host:
    """Return what calls code with a shelf, one for each execution, of the same records."""
    kept: dict[str, Record] = {}

    async def host(handlers: Handlers, code: Code[T]) -> T:
        return await code(Shelf(handlers, kept, broken), RUN)

    return host


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
def test_a_runtime_of_a_screen_keeps_them_too(check: RuntimeCheck) -> None:
    run(check(on_a_shelf()))


BREAKS = {
    "an_operation_is_called_once": "again",
    "another_input_under_a_key_is_refused": "input",
    "another_kind_under_a_key_is_refused": "kind",
    "another_handler_under_a_key_is_refused": "handler",
    "kind_and_handler_say_what_is_called": "first",
    "whatever_it_came_to_is_recorded": "successes",
    "what_cannot_be_executed_is_refused_first": "unchecked",
    "an_output_over_the_limit_is_a_failure": "any size",
    "of_those_that_ask_at_once_one_is_served": "together",
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_runtime_that_breaks_a_promise_is_found(name: str) -> None:
    with pytest.raises((AssertionError, PerdureError)):
        run(CHECKS[name](on_a_shelf(BREAKS[name])))
