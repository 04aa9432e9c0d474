from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import Context, OperationIdentity, RunNeedsAttention, effect
from perdure.errors import DuplicateOperation, InvalidInvocation, InvalidPayload
from tests.harness import RUN, Pause, app_on, run

pytestmark = pytest.mark.usefixtures("storage")


def test_events_that_were_delivered_are_not_delivered_again(tmp_path: Path) -> None:
    got: list[Any] = []
    pause = Pause()

    def publish(event: dict[str, Any]) -> str:
        got.append(event["part"])
        return "ignored"

    async def work(context: Context) -> None:
        for part in (1, 2):
            await context.deliver("progress", part, {"part": part}, to=publish)
        await pause()
        await context.deliver("progress", 3, {"part": 3}, to=publish)

    async def main() -> None:
        app = app_on(tmp_path)
        app.run(version=1)(work)
        async with app:
            await app.start(work, run_id=RUN)
            await pause.reached.wait()
        pause.open = True
        again = app_on(tmp_path)
        again.run(version=1)(work)
        async with again:
            await again.handle(RUN).result()
            assert got == [1, 2, 3]
            rows = await again.store.list_operations(RUN)
            assert [(row.kind, row.step_id, row.sequence) for row in rows] == [
                ("event_delivery", "progress", part) for part in (1, 2, 3)
            ]

    run(main())


def test_an_event_that_fails_is_delivered_again_by_itself(tmp_path: Path) -> None:
    """A failure after the first event does not send the first one again."""
    got: list[int] = []

    def publish(event: dict[str, Any]) -> None:
        got.append(event["part"])
        if got == [1, 2]:
            raise ConnectionError("the line is cut")

    async def main() -> None:
        app = app_on(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> str:
            await context.deliver("progress", 1, {"part": 1}, to=publish)
            await context.deliver("progress", 2, {"part": 2}, to=publish)
            return "done"

        async with app:
            assert await (await app.start(work, run_id=RUN)).result() == "done"
            assert got == [1, 2, 2]

    run(main())


def test_a_target_that_declares_its_effect_is_believed(tmp_path: Path) -> None:
    seen: list[OperationIdentity] = []

    @effect(target="pager")
    def page(event: dict[str, Any], operation: OperationIdentity) -> None:
        seen.append(operation)
        raise ConnectionError(event["what"])

    async def main() -> None:
        app = app_on(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> None:
            await context.deliver("page", 1, {"what": "fire"}, to=page)

        async with app:
            with pytest.raises(RunNeedsAttention, match="pager"):
                await (await app.start(work, run_id=RUN)).result()
            assert [each.idempotency_key for each in seen] == ["page"]

    run(main())


def test_what_is_no_event_is_refused(tmp_path: Path) -> None:
    def publish(event: dict[str, Any]) -> None:
        raise AssertionError(event)

    async def main() -> None:
        app = app_on(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> list[str]:
            refused: list[str] = []
            for step, sequence, event in (("a b", 1, {}), ("a", -1, {}), ("a", 1, {"x": object()})):
                try:
                    await context.deliver(step, sequence, event, to=publish)
                except (InvalidInvocation, InvalidPayload) as error:
                    refused.append(type(error).__name__)
            return refused

        async with app:
            refused = await (await app.start(work, run_id=RUN)).result()
            assert refused == ["InvalidInvocation", "InvalidInvocation", "InvalidPayload"]

    run(main())


def test_a_place_is_of_one_event(tmp_path: Path) -> None:
    def publish(event: dict[str, Any]) -> None:
        del event

    async def main() -> None:
        app = app_on(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> str:
            await context.deliver("a", 1, {}, to=publish)
            try:
                await context.deliver("a", 1, {}, to=publish)
            except DuplicateOperation as error:
                return str(error)
            return ""

        async with app:
            said = await (await app.start(work, run_id=RUN)).result()
            assert "a/1" in said

    run(main())
