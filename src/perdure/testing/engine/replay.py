from __future__ import annotations

import asyncio
from typing import Any

from perdure.app import App
from perdure.context import Context
from perdure.engine.store import RunState
from perdure.errors import OperationFailed, RunNeedsAttention
from perdure.functions import operation
from perdure.retry import RetryPolicy
from perdure.testing.engine.scene import Gate, Register, Scene, end_of
from perdure.testing.storage.expecting import ensure, expect, refusal


async def what_was_recorded_is_not_performed_again(scene: Scene) -> None:
    """A later execution has the same results, times, ids and random numbers."""
    called: list[str] = []
    seen: list[list[Any]] = []
    gate = Gate()

    async def add(text: str) -> tuple[str, int]:
        called.append(text)
        return text, len(called)

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(context: Context) -> tuple[str, int]:
            first = await context.call(add, "first")
            drawn = [context.uuid(), context.random().random(), await context.now()]
            seen.append([first, *drawn])
            await gate()
            return await context.call(add, "second")

    one = await scene.worker(serving)
    handle = await one.start("work", run_id=scene.name())
    await gate.reached()
    other = await _other(scene, one, serving, gate)
    expect(await end_of(other.handle(handle.run_id)), ("second", 2), "the result")
    expect(called, ["first", "second"], "what was performed")
    expect(seen[1:], seen[:1] * (len(seen) - 1), "what later executions see")
    ensure(len(seen) > 1, "there was another execution")


async def a_failure_is_recorded_as_a_result_is(scene: Scene) -> None:
    """It is raised again without a call, as the same error."""
    called: list[str] = []
    told: list[tuple[str, str]] = []
    gate = Gate()

    @operation(read_only=True)
    async def look() -> None:
        called.append("look")
        raise LookupError("it is not there")

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(context: Context) -> str:
            try:
                await context.call(look)
            except OperationFailed as failed:
                told.append((failed.code, failed.message))
                await gate()
                return "went on"
            return "found"

    one = await scene.worker(serving)
    handle = await one.start("work", run_id=scene.name())
    await gate.reached()
    other = await _other(scene, one, serving, gate)
    expect(await end_of(other.handle(handle.run_id)), "went on", "the result")
    expect(called, ["look"], "what was performed")
    expect({*told}, {("LookupError", "it is not there")}, "what the executions are told")


async def operations_at_once_keep_their_places(scene: Scene) -> None:
    """Whichever ends first, each has its own result in every execution."""
    called: list[int] = []
    gate, last = Gate(), asyncio.Event()

    @operation(read_only=True)
    async def wait_for_the_last(number: int) -> int:
        called.append(number)
        if number == 3:
            last.set()
        await last.wait()
        return number

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(context: Context) -> list[int]:
            asked = [context.call(wait_for_the_last, number) for number in (1, 2, 3)]
            found = [*await asyncio.gather(*asked)]
            await gate(found)
            return found

    one = await scene.worker(serving)
    handle = await one.start("work", run_id=scene.name())
    await gate.reached()
    other = await _other(scene, one, serving, gate)
    expect(await end_of(other.handle(handle.run_id)), [1, 2, 3], "the results")
    expect(sorted(called), [1, 2, 3], "what was performed")
    expect({*map(str, gate.came)}, {"[1, 2, 3]"}, "what the executions see")


async def code_that_differs_needs_attention(scene: Scene) -> None:
    """Nothing is performed; once the code is mended and a person resumes the run, it goes on."""
    called: list[str] = []
    gate = Gate()

    async def say(text: str) -> str:
        called.append(text)
        return text

    def saying(text: str) -> Register:
        def serving(app: App) -> None:
            @app.run(version=1)
            async def work(context: Context) -> str:
                said = await context.call(say, text)
                await gate()
                return said + await context.call(say, "!")

        return serving

    one = await scene.worker(saying("hello"))
    handle = await one.start("work", run_id=scene.name())
    await gate.reached()
    other = await _other(scene, one, saying("goodbye"), gate)
    with refusal(RunNeedsAttention, "a run whose code asks for something else"):
        await end_of(other.handle(handle.run_id))
    problem = (await other.find(handle.run_id)).problem
    expect(problem and problem.code, "ReplayMismatch", "what it needs attention for")
    await scene.close(other)
    mended = await scene.worker(saying("hello"))
    await mended.resume(handle.run_id)
    expect(await end_of(mended.handle(handle.run_id)), "hello!", "the result")
    expect(called, ["hello", "!"], "what was performed")


async def a_run_that_failed_goes_on_when_it_is_resumed(scene: Scene) -> None:
    """With what it recorded; one that completed stays as it is."""
    called: list[str] = []
    broken = [True]

    async def note(text: str) -> str:
        called.append(text)
        return text

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(context: Context) -> str:
            said = await context.call(note, "first")
            if broken:
                raise ZeroDivisionError(broken.pop())
            return said + await context.call(note, "second")

    worker, outsider = await scene.worker(serving), await scene.outsider(serving)
    handle = await worker.start("work", run_id=scene.name())
    await asyncio.gather(end_of(handle), return_exceptions=True)
    expect(await handle.status(), RunState.FAILED, "where it stands before")
    await outsider.resume(handle.run_id)
    expect(await end_of(handle), "firstsecond", "the result")
    expect((await outsider.resume(handle.run_id)).state, RunState.COMPLETED, "one that completed")
    expect(called, ["first", "second"], "what was performed")


async def an_operation_is_tried_again_as_its_policy_says(scene: Scene) -> None:
    """An execution that takes over makes no attempt again that has failed before."""
    called: list[int] = []
    gate = Gate()

    @operation(read_only=True, retry=RetryPolicy(attempts=4, initial_seconds=0.01))
    async def flaky() -> int:
        called.append(len(called))
        if len(called) < 3:
            raise ConnectionError("gone")
        if len(called) == 3:
            await gate()
        raise ConnectionError("gone for good")

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(context: Context) -> str:
            try:
                await context.call(flaky)
            except OperationFailed as failed:
                return failed.message
            return ""

    one = await scene.worker(serving)
    handle = await one.start("work", run_id=scene.name())
    await gate.reached()
    other = await _other(scene, one, serving, gate)
    expect(await end_of(other.handle(handle.run_id)), "gone for good", "the result")
    # The third attempt was cut short, and is made again; the two before it are not.
    expect(len(called), 5, "the attempts that were made")


async def _other(scene: Scene, one: App, register: Register, gate: Gate) -> App:
    """Close an App at a place in its run, and return another one, which gets past it."""
    await scene.close(one)
    gate.open()
    return await scene.worker(register)
