"""An agent that freezes as it streams, the next one, which takes over, and who looks on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.channels.stored import StoredChannel
from perdure.errors import SessionError
from perdure.fence import Fence
from perdure.session.channel import Channel, Draft, Revision
from perdure.session.codec import UiMessageCodec
from perdure.session.reader import SessionReader
from perdure.session.session import AgentSession
from perdure.testing.storage.scene import SERVED, new_run
from tests.channels import Process, TurnClock, opened
from tests.session_agents import ASKED, text

RUN = "run-1"
DEAD = text("of", " the", " dead", message_id="dead")
GOOD = text("of", " the", " living", message_id="good")
WHOLE = {"dead": "of the dead", "good": "of the living"}
END = len(GOOD)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What happens before which chunk of an attempt; `END` is behind the last one."""

    frozen: int
    """Of the first attempt: it is written no further."""
    thawed: int | None
    """Of the second one: the first goes on to write the rest; None for never."""
    fenced: bool = True
    leaves: int = 2
    """Of the first one: a reader goes away."""
    returns: int = 4
    """Of the second one: that reader comes back."""
    late: int = 0
    """Of the second one: another reader comes."""
    turns: Sequence[int] = (0,)
    """How many turns of the loop pass before the chunks of both, over and over."""


class Freezing:
    """The channel of a process that freezes: what is written from then on waits until it thaws."""

    def __init__(self, inner: StoredChannel) -> None:
        self.history = inner.history
        self.subscribe = inner.subscribe
        self.asleep = asyncio.Event()
        self._awake = asyncio.Event()
        self._awake.set()
        self._inner = inner

    def freeze(self) -> None:
        self._awake.clear()
        self.asleep.set()

    def thaw(self) -> None:
        self._awake.set()

    async def publish(self, drafts: Sequence[Draft]) -> list[str]:
        await self._awake.wait()
        return await self._inner.publish(drafts)

    async def append(self, serial: str, change: Revision) -> str:
        await self._awake.wait()
        return await self._inner.append(serial, change)

    async def update(self, serial: str, change: Revision) -> str:
        await self._awake.wait()
        return await self._inner.update(serial, change)


class Onlooker:
    """A reader who looks at what is shown after everything that reaches it."""

    def __init__(self) -> None:
        self.reader = SessionReader(UiMessageCodec())
        self.starts: set[str] = set()

    async def look_on(self, channel: StoredChannel) -> None:
        """Read until somebody says goodbye, from a snapshot on or from where it was."""
        if self.reader.cursor is None:
            snapshot = await channel.snapshot()
            self.starts |= {m.serial for m in snapshot.messages if m.name == "ai-step-start"}
            self.reader.resync(snapshot.messages, snapshot.cursor, more=snapshot.more)
            self._look()
        async with channel.subscribe(self.reader.cursor) as deliveries:
            while self.texts[-1:] != ["bye"]:
                delivery = await anext(deliveries)
                self.starts |= {delivery.serial} if delivery.name == "ai-step-start" else set()
                self.reader.receive(delivery)
                self._look()

    @property
    def texts(self) -> list[str]:
        """The texts that are shown."""
        parts = [part for m in self.reader.view.messages for part in m.message["parts"]]
        return [part["text"] for part in parts if "text" in part]

    def _look(self) -> None:
        messages = [message.message for message in self.reader.view.messages]
        answers = [message for message in messages if message["role"] == "assistant"]
        assert len(answers) <= 1
        for answer in answers:
            shown = "".join(part.get("text", "") for part in answer["parts"])
            assert not shown or WHOLE[answer["id"]].startswith(shown)
            assert not shown or len(self.starts) < 2 or answer["id"] == "good"


class Played:
    """A plan on its way: three processes with a session, the agent's two attempts, the readers."""

    def __init__(self, plan: Plan, processes: Sequence[Process], clock: TurnClock) -> None:
        self.live, self.returning, self.late = Onlooker(), Onlooker(), Onlooker()
        self.refused: BaseException | None = None
        """What kept the first attempt from writing on, if anything did."""
        self._plan = plan
        self._old, self._new, self._aside = processes
        self._clock = clock
        self._errors: list[SessionError] = []

    async def play(self) -> None:
        """Let all happen, until every reader has come to the end."""
        await self._say("hi", "1")
        async with asyncio.TaskGroup() as looking:
            looking.create_task(self.live.look_on(self._aside.channel("s", "live")))
            leaving = asyncio.create_task(
                self.returning.look_on(self._old.channel("s", "returning"))
            )
            fence = await self._own(self._old)
            frozen = Freezing(self._old.channel("s", "agent", fence if self._plan.fenced else None))
            first = asyncio.create_task(self._first(frozen, leaving))
            await frozen.asleep.wait()
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await self._old.store.release_run(fence)
            fence = await self._own(self._new)
            await self._second(self._new.channel("s", "agent", fence), looking, frozen)
            if self._plan.thawed is None:
                first.cancel()
            (self.refused,) = await asyncio.gather(first, return_exceptions=True)
            await self._say("bye", "2")

    async def _first(self, channel: Freezing, leaving: asyncio.Task[None]) -> None:
        def happen(chunk: int) -> None:
            if chunk == self._plan.leaves:
                leaving.cancel()
            if chunk == self._plan.frozen:
                channel.freeze()

        async with self._agent(channel) as session:
            run = session.create_run(ASKED, run_id=RUN, invocation_id="i")
            await run.start()
            async with run.create_step(step_id="s") as step:
                await step.pipe(self._chunks(DEAD, happen))

    async def _second(
        self, channel: StoredChannel, looking: asyncio.TaskGroup, frozen: Freezing
    ) -> None:
        def happen(chunk: int) -> None:
            for who, when in ((self.late, self._plan.late), (self.returning, self._plan.returns)):
                if chunk == when:
                    looking.create_task(who.look_on(self._new.channel("s", "reader")))
            if chunk == self._plan.thawed:
                frozen.thaw()

        async with self._agent(channel) as session:
            run = session.adopt_run(run_id=RUN, invocation_id="i", trigger=ASKED)
            await run.load()
            async with run.create_step(step_id="s") as step:
                await step.pipe(self._chunks(GOOD, happen))
            await run.end()
        happen(END)

    async def _chunks(
        self, chunks: Sequence[Any], happen: Callable[[int], None]
    ) -> AsyncIterator[Any]:
        for number, chunk in enumerate(chunks):
            for _ in range(self._plan.turns[number % len(self._plan.turns)]):
                await asyncio.sleep(0)
            happen(number)
            yield chunk

    async def _own(self, process: Process) -> Fence:
        """Claim the run for a worker of a process."""
        holder = await process.store.register_worker("worker", 3600.0)
        await process.store.start_run(new_run(RUN), None)
        (claimed,) = await process.store.claim_runs(holder, SERVED, 1)
        return claimed.fence

    def _agent(self, channel: Channel) -> AgentSession:
        return AgentSession(
            channel, UiMessageCodec(), clock=self._clock, on_error=self._errors.append
        )

    async def _say(self, what: str, number: str) -> None:
        said = Draft(
            message_id=f"said {number}",
            name="ai-input",
            transport={
                "role": "user",
                "codec-message-id": f"u{number}",
                "event-id": f"e{number}",
                "run-client-id": "alice",
            },
            codec={"kind": "user-message", "messageId": f"dom-{number}", "partType": "text"},
            data=what,
        )
        await self._aside.channel("s", "alice").publish([said])


async def played(plan: Plan, url: str) -> Played:
    """Play a plan on an empty place; every reader has seen the answer of the second attempt."""
    clock = TurnClock()
    async with opened(url, 3, clock) as processes:
        it = Played(plan, processes, clock)
        await it.play()
        cold = Onlooker()
        await cold.look_on(processes[0].channel("s", "cold"))
    for reader in (it.live, it.returning, it.late, cold):
        assert reader.texts == ["hi", WHOLE["good"], "bye"]
        (shown,) = reader.reader.view.runs
        assert shown.lifecycle.status == "complete"
    return it
