"""What no run waits for, and what reaches none: it is refused, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import Context, RunState, current, operation
from perdure.errors import (
    InvalidInvocation,
    RunEnded,
    RunErased,
    UnknownRun,
)
from tests.harness import RUN, app_on, operations, run
from tests.waiting import listening, stands, waiting_app

pytestmark = pytest.mark.usefixtures("storage")


def test_only_runs_that_go_on_take_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        app = listening(tmp_path, "a")

        @app.run(version=1)
        async def breaks(context: Context) -> None:
            raise ValueError("broken")

        async with app:
            await app.start("listen", run_id=RUN)
            await app.send(RUN, "a", 1, id="1")
            await app.handle(RUN).result()
            broken = await app.start(breaks, run_id="broken")
            await stands(app, RunState.FAILED, run_id="broken")
            stopped = await app.start("listen", run_id="stopped")
            await stopped.cancel()
            await stands(app, RunState.CANCELLED, run_id="stopped")
            for run_id in (RUN, broken.run_id, stopped.run_id):
                with pytest.raises(RunEnded):
                    await app.send(run_id, "a", 2)
            # What was taken is told again, also when the run has ended since.
            assert (await app.send(RUN, "a", 1, id="1")).taken_by == ("wait", 1)
            for unknown in ("unknown", "no id", "nul\x00", ""):
                with pytest.raises(UnknownRun):
                    await app.send(unknown, "a", 1)
                with pytest.raises(UnknownRun):
                    await app.messages(unknown)
            await app.erase(RUN, by="ada", why="asked")
            with pytest.raises(RunErased):
                await app.send(RUN, "a", 2)
            assert await app.messages(RUN) == []

    run(scenario())


def test_a_wait_inside_an_operation_is_refused(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def child(context: Context) -> None:
            pass

        @app.run(version=1)
        async def work(context: Context) -> list[str]:
            said: list[str] = []

            @operation(read_only=True)
            async def inside() -> None:
                here = current()
                assert here is not None
                for refused in (
                    lambda: here.wait_for("news"),
                    lambda: here.approval("pay", {}),
                    lambda: here.start_child(child),
                ):
                    with pytest.raises(InvalidInvocation, match="inside an operation") as error:
                        await refused()
                    said.append(type(error.value).__name__)

            await context.call(inside)
            return said

        async with app:
            return await (await app.start(work, run_id=RUN)).result()

    assert run(scenario()) == ["InvalidInvocation"] * 3
    assert len(run(operations(app_on(tmp_path)))) == 1


@pytest.mark.parametrize("name", ["", "a b", "perdure:run:x", "ä", "x" * 129, 7])
def test_names_that_are_none_are_refused(tmp_path: Path, name: Any) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> str:
            with pytest.raises(InvalidInvocation, match="message name"):
                await context.wait_for(name)
            with pytest.raises(InvalidInvocation, match="approval name"):
                await context.approval(name, {})
            await context.wait_for("go")
            return "refused"

        async with app:
            handle = await app.start(work, run_id=RUN)
            with pytest.raises(InvalidInvocation, match="message name"):
                await app.send(RUN, name, 1)
            for odd in ("perdure:run:x", "", "x" * 201, "two\nlines"):
                with pytest.raises(InvalidInvocation, match="id of a message"):
                    await app.send(RUN, "go", id=odd)
            await app.send(RUN, "go", id="ä b" + "x" * 197)
            return await handle.result()

    assert run(scenario()) == "refused"
