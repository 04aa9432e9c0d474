from __future__ import annotations

import asyncio
from typing import Any

import dbos
import sqlalchemy
from dbos import DBOS, SetWorkflowID

from benchmarks.conversation import Message, question, reply
from benchmarks.payload import PAYLOAD_BYTES
from benchmarks.peers.peer import Peer, Watcher, answer, work
from benchmarks.storages import is_file

_SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")


class DbosPeer(Peer):
    """Workflows and steps of DBOS, in this process."""

    def __init__(self, address: str, watcher: Watcher) -> None:
        super().__init__(address, watcher)
        DBOS(
            config={
                "name": "benchmarks",
                "system_database_url": address,
                "log_level": "ERROR",
            }
        )
        self._work, self._converse, self._one_turn = _workflows(watcher)

    async def open(self) -> None:
        DBOS.launch()

    async def close(self) -> None:
        DBOS.destroy()

    async def settings(self) -> str:
        engine = dbos._dbos._get_dbos_instance()._sys_db.engine
        names = (
            ("journal_mode", "synchronous") if is_file(self.address) else ("synchronous_commit",)
        )
        ask = "PRAGMA {}" if is_file(self.address) else "SHOW {}"
        with engine.connect() as connection:
            shown = {
                name: connection.execute(sqlalchemy.text(ask.format(name))).scalar()
                for name in names
            }
        if is_file(self.address):
            shown["synchronous"] = _SYNCHRONOUS[shown["synchronous"]]
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    async def run(self, run_id: str, operations: int, size: int) -> int:
        handle = await self._start(run_id, self._work, run_id, operations, size, False)
        return await handle.get_result()

    async def go_on(self, run_id: str, operations: int, size: int) -> int:
        # What was pending when this process was launched is executed already.
        if await DBOS.get_workflow_status_async(run_id) is None:
            return await self.run(run_id, operations, size)
        handle = await DBOS.retrieve_workflow_async(run_id)
        return await handle.get_result(polling_interval_sec=0.05)

    async def hold(self, run_id: str, operations: int) -> None:
        await self._start(run_id, self._work, run_id, operations, PAYLOAD_BYTES, True)

    async def replay(self, run_id: str, operations: int) -> float:
        return await self.until_held()

    async def converse(self, turns: int) -> None:
        await (await self._start("conversation", self._converse, turns)).get_result()

    async def converse_by_turns(self, turns: int) -> None:
        messages: list[Message] = []
        for turn in range(turns):
            messages.append(question(turn))
            handle = await self._start(f"turn-{turn}", self._one_turn, messages)
            messages.append(await handle.get_result())

    async def _start(self, run_id: str, function: Any, *arguments: Any) -> Any:
        with SetWorkflowID(run_id):
            return await DBOS.start_workflow_async(function, *arguments)


def _workflows(watcher: Watcher) -> tuple[Any, Any, Any]:
    """Register the workflows of this process, which DBOS finds by their names."""

    @DBOS.step()
    async def touch(name: str, payload: str, seed: int) -> str:
        watcher.called(name)
        return answer(len(payload), seed)

    @DBOS.step()
    async def held(run_id: str) -> None:
        watcher.held(run_id)
        await asyncio.Event().wait()

    @DBOS.step()
    async def ask(turn: int, messages: list[Message]) -> Message:
        return reply(turn)

    @DBOS.workflow()
    async def working(run_id: str, operations: int, size: int, holds: bool) -> int:
        returned = await work(watcher, touch, run_id, operations, size)
        if holds:
            await held(run_id)
        return returned

    @DBOS.workflow()
    async def conversation(turns: int) -> None:
        messages: list[Message] = []
        for turn in range(turns):
            messages.append(question(turn))
            messages.append(await ask(turn, messages))

    @DBOS.workflow()
    async def one_turn(messages: list[Message]) -> Message:
        return await ask(len(messages) // 2, messages)

    return working, conversation, one_turn
