from __future__ import annotations

from perdure.app import App
from perdure.context import Context
from perdure.errors import ForkRepeats, RunConflict, UnknownOperation, UnknownRun
from perdure.functions import operation
from perdure.testing.engine.scene import Register, Scene, end_of
from perdure.testing.storage.expecting import ensure, expect, refusal


def _shop(happened: list[str]) -> Register:
    """Return what registers a run that looks at a price, pays it and gives a receipt."""

    @operation(read_only=True)
    async def price(order: str) -> int:
        happened.append(f"price of {order}")
        return 9

    async def pay(amount: int) -> str:
        happened.append(f"pay {amount}")
        return f"paid {amount}"

    def serving(app: App) -> None:
        @app.run(version=1)
        async def buy(context: Context, order: str) -> list[str]:
            drawn = str(context.uuid())
            amount = await context.call(price, order)
            return [drawn, await context.call(pay, amount)]

    return serving


async def a_fork_goes_on_from_its_place(scene: Scene) -> None:
    """Before it, everything is as it was; from there on, everything is performed."""
    happened: list[str] = []
    app = await scene.worker(_shop(happened))
    first = await app.start("buy", "tea", run_id=scene.name())
    result = await end_of(first)
    fork = await app.fork(first.run_id, "call/2", repeat_effects=True)
    expect(await end_of(fork), result, "what the fork returns")
    expect(happened, ["price of tea", "pay 9", "pay 9"], "what happened")
    ensure(fork.run_id != first.run_id, "a fork is another run")
    expect(await end_of(first), result, "the run that it was forked from")


async def an_edit_stands_for_what_an_operation_came_to(scene: Scene) -> None:
    """The code goes on with that."""
    happened: list[str] = []
    worker, outsider = await scene.worker(_shop(happened)), await scene.outsider(_shop(happened))
    first = await worker.start("buy", "tea", run_id=scene.name())
    drawn, _ = await end_of(first)
    name = scene.name("fork")
    fork = await outsider.fork(first.run_id, "call/1", edit=7, new_id=name, repeat_effects=True)
    expect(fork.run_id, name, "its id")
    expect(await end_of(worker.handle(name)), [drawn, "paid 7"], "what the fork returns")
    expect(happened, ["price of tea", "pay 9", "pay 7"], "what happened")


async def a_fork_that_cannot_be_leaves_nothing(scene: Scene) -> None:
    """Of what is not there, under an id that is taken, or over effects that nobody let repeat."""
    happened: list[str] = []
    app = await scene.worker(_shop(happened))
    first = await app.start("buy", "tea", run_id=scene.name())
    await end_of(first)
    with refusal(ForkRepeats, "effects that nobody let repeat"):
        await app.fork(first.run_id, "call/2")
    with refusal(UnknownOperation, "an operation that is not there"):
        await app.fork(first.run_id, "call/9")
    with refusal(UnknownRun, "a run that is not there"):
        await app.fork(scene.name("nobody"), "call/1")
    with refusal(RunConflict, "an id that is taken"):
        await app.fork(first.run_id, "call/2", new_id=first.run_id, repeat_effects=True)
    expect([row.run_id for row in await app.list()], [first.run_id], "the runs that are there")
    expect(happened, ["price of tea", "pay 9"], "what happened")
