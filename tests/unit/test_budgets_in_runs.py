"""Budgets of runs on a store: across executions, and with more after a person resumed the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Context, RunFailed
from perdure.errors import BudgetExceeded
from perdure.journal import Binding, Handlers, OperationKind
from perdure.journal.budget import Budget, Meter
from perdure.journal.payloads import (
    ModelRequest,
    RequestUsage,
    ResponseMessage,
    TextPart,
)
from perdure.journal.spending import Spent, Usage
from perdure.runtimes.embedded import EmbeddedRuntime
from tests.harness import RUN, Pause, app_on, finish, interrupt, keys, run

MODEL = OperationKind.MODEL_REQUEST
LONG = "word " * 2000  # more than a store reads along with the journal


class Desk:
    """A model that counts its requests, and code of a run that asks it again and again."""

    def __init__(self, folder: Path, requests: int) -> None:
        self.app = app_on(folder)
        self.asked = 0
        self.pause = Pause()
        self.pause.open = True
        self.spent = Spent()
        handlers = Handlers()

        @handlers.model_request("desk")
        async def answer(request: ModelRequest) -> ResponseMessage:
            self.asked += 1
            usage = RequestUsage(input_tokens=10, output_tokens=1)
            return ResponseMessage(parts=(TextPart(content=LONG),), usage=usage)

        @self.app.run(version=1)
        async def work(context: Context) -> str:
            spending = await context.spending()
            meter = Meter(Budget(requests=requests), spending=spending)
            runtime = EmbeddedRuntime(context, handlers)
            ids = {MODEL: "desk"}
            binding = Binding(run_id=RUN, runtime=runtime, handler_ids=ids, meter=meter)
            for number in range(1, 5):
                await binding.model_request("model.request", number, ModelRequest(messages=()))
                if number == 2:
                    await self.pause()
            self.spent = spending.spent
            return "done"

        self.work = work


def test_a_run_goes_on_with_what_it_had_left(tmp_path: Path) -> None:
    first = Desk(tmp_path, requests=3)
    first.pause.open = False
    run(interrupt(first.app, first.pause, first.work))
    second = Desk(tmp_path, requests=3)
    with pytest.raises(RunFailed, match="requests=3, and 3 are used") as failed:
        run(finish(second.app))
    assert failed.value.code == BudgetExceeded.__name__
    assert (first.asked, second.asked) == (2, 1)

    async def resumed(desk: Desk) -> object:
        async with desk.app:
            await desk.app.resume(RUN)
            return await desk.app.handle(RUN).result()

    with pytest.raises(RunFailed, match="requests=3"):
        run(resumed(second))
    third = Desk(tmp_path, requests=4)
    assert run(resumed(third)) == "done"
    assert (second.asked, third.asked) == (1, 1)
    whole = Usage(requests=4, input_tokens=40, output_tokens=4)
    assert third.spent == Spent(whole, whole)
    assert run(keys(third.app)) == [("model.request", number) for number in range(1, 5)]
