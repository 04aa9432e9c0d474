from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.conversation import Message, question, reply, transcript_bytes
from benchmarks.payload import text
from benchmarks.row import Figure, Row, Setting, Target
from benchmarks.storages import POSTGRES, SQLITE, size
from benchmarks.work import echo
from perdure import App, Context, operation

TURNS = 100
_MANY_TURNS = 1000
WARMING, WARMING_BYTES = 3, 5000
ONE_RUN = "as one run"
RUN_A_TURN = "as a run a turn, the history passed in"


@operation(read_only=True)
async def ask(turn: int, messages: list[Message]) -> Message:
    """Stand for a model: answer to the whole conversation so far."""
    return reply(turn)


def measure(setting: Setting) -> list[Figure]:
    """Weigh what conversations leave on the disk, as one run and as a run a turn."""
    return [
        asyncio.run(_weigh(setting, setting.scale(turns, turns // 5), converse, name, how, limit))
        for turns in (TURNS, _MANY_TURNS)
        for name, how, converse, limit in (
            ("one run", ONE_RUN, _as_one_run, 1.6),
            ("runs", RUN_A_TURN, _as_runs, 2.0),
        )
    ]


async def _weigh(
    setting: Setting,
    turns: int,
    converse: Callable[[App, int], Awaitable[None]],
    name: str,
    how: str,
    limit: float,
) -> Figure:
    url = setting.database(f"p8-{turns}-{name.replace(' ', '-')}").url
    await _warm(App(url))
    before = size(url)
    await converse(App(url), turns)
    return weighed(turns, name, how, size(url) - before, [Target(limit, of="ratio")])


def weighed(turns: int, name: str, how: str, grown: int, targets: Sequence[Target] = ()) -> Figure:
    """Return the figure of a conversation that a database grew by."""
    transcript = transcript_bytes(turns)
    return Figure(
        label=f"{turns} model requests {how}: bytes on the disk over those of the transcript",
        value=grown / 1000,
        unit="KB",
        floor=transcript / 1000,
        floor_unit="KB",
        ratio=grown / transcript,
        targets=targets,
        name=f"{name} {turns}",
    )


async def _warm(app: App) -> None:
    """Let every table have its first pages, which belong to no conversation."""

    @app.run(version=1)
    async def warming(context: Context) -> None:
        for _ in range(WARMING):
            await context.call(echo, text(WARMING_BYTES))

    async with app:
        await (await app.start(warming)).result()


async def _as_one_run(app: App, turns: int) -> None:
    @app.run(version=1)
    async def conversation(context: Context, turns: int) -> None:
        messages: list[Message] = []
        for turn in range(turns):
            messages.append(question(turn))
            messages.append(await context.call(ask, turn, messages))

    async with app:
        handle = await app.start(conversation, turns)
        await handle.result()


async def _as_runs(app: App, turns: int) -> None:
    @app.run(version=1)
    async def one_turn(context: Context, messages: list[Message]) -> Message:
        return await context.call(ask, len(messages) // 2, messages)

    async with app:
        messages: list[Message] = []
        for turn in range(turns):
            messages.append(question(turn))
            handle = await app.start(one_turn, messages)
            messages.append(await handle.result())


ROW = Row(
    number="P8",
    work="a conversation on the disk",
    floor="the transcript as JSON",
    measure=measure,
    storages=[SQLITE, POSTGRES],
)
