from __future__ import annotations

import asyncio
import operator
import time
from abc import abstractmethod
from contextlib import AsyncExitStack
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks.conversation import Message, question, reply
from benchmarks.payload import PAYLOAD_BYTES, text
from benchmarks.peers.peer import Peer, Watcher, answer, seed_of, work
from benchmarks.storages import file_of, is_file

_SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
_POOL: Any = {"min_size": 4, "max_size": 20, "open": False}
_STEPS_BESIDE = 10


class _Checkpointed(Peer):
    """A checkpointer and `durability="sync"`; every run is a thread."""

    def __init__(self, address: str, watcher: Watcher) -> None:
        super().__init__(address, watcher)
        self._open = AsyncExitStack()
        self._saver: Any = None
        self._work: Any = None

    @abstractmethod
    def _compile(self) -> Any:
        """Return what does the work, with the checkpointer."""

    async def open(self) -> None:
        if is_file(self.address):
            saver = AsyncSqliteSaver.from_conn_string(str(file_of(self.address)))
            self._saver = await self._open.enter_async_context(saver)
        else:
            options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
            pool: Any = AsyncConnectionPool(self.address, kwargs=options, **_POOL)
            self._saver = AsyncPostgresSaver(await self._open.enter_async_context(pool))
        await self._saver.setup()
        self._work = self._compile()

    async def close(self) -> None:
        await self._open.aclose()

    async def settings(self) -> str:
        if is_file(self.address):
            async with self._saver.conn.execute("PRAGMA journal_mode") as cursor:
                (journal,) = await cursor.fetchone()
            async with self._saver.conn.execute("PRAGMA synchronous") as cursor:
                (synchronous,) = await cursor.fetchone()
            return f"journal_mode={journal}, synchronous={_SYNCHRONOUS[synchronous]}"
        async with self._saver.conn.connection() as connection:
            row = await (await connection.execute("SHOW synchronous_commit")).fetchone()
        return f"synchronous_commit={row['synchronous_commit']}"


class TaskPeer(_Checkpointed):
    """Tasks of the functional API."""

    def _compile(self) -> Any:
        return _entrypoint(self._saver, self.watcher)

    async def run(self, run_id: str, operations: int, size: int) -> int:
        return await _invoke(self._work, run_id, [run_id, operations, size, False])

    async def go_on(self, run_id: str, operations: int, size: int) -> int:
        state = await self._work.aget_state(_thread(run_id))
        if state.created_at is None:
            return await self.run(run_id, operations, size)
        return await _invoke(self._work, run_id, None) if state.tasks else state.values

    async def hold(self, run_id: str, operations: int) -> None:
        await _invoke(self._work, run_id, [run_id, operations, PAYLOAD_BYTES, True])

    async def replay(self, run_id: str, operations: int) -> float:
        # Loading is one read before the code begins, so its time counts.
        began = time.perf_counter()
        going = asyncio.create_task(_invoke(self._work, run_id, None))
        await self.until_held()
        going.cancel()
        return self.watcher.held_at - began

    async def converse(self, turns: int) -> None:
        @entrypoint(checkpointer=self._saver)
        async def conversation(turns: int) -> None:
            messages: list[Message] = []
            for turn in range(turns):
                messages.append(question(turn))
                messages.append(await _ask(turn, messages))

        await _invoke(conversation, "conversation", turns)

    async def converse_by_turns(self, turns: int) -> None:
        @entrypoint(checkpointer=self._saver)
        async def one_turn(messages: list[Message]) -> Message:
            return await _ask(len(messages) // 2, messages)

        messages: list[Message] = []
        for turn in range(turns):
            messages.append(question(turn))
            messages.append(await _invoke(one_turn, f"turn-{turn}", messages))


class GraphPeer(_Checkpointed):
    """A graph with a step for each operation; a conversation has its messages as state."""

    def _compile(self) -> Any:
        return _stepping(self.watcher).compile(checkpointer=self._saver)

    async def run(self, run_id: str, operations: int, size: int) -> int:
        given = {"run_id": run_id, "operations": operations, "size": size, "number": 0}
        return await self._finish(run_id, operations, {**given, "returned": 0, "answered": ""})

    async def go_on(self, run_id: str, operations: int, size: int) -> int:
        state = await self._work.aget_state(_thread(run_id))
        if state.created_at is None:
            return await self.run(run_id, operations, size)
        if state.tasks:
            return await self._finish(run_id, operations, None)
        return state.values["returned"]

    async def _finish(self, run_id: str, operations: int, given: Any) -> int:
        state = await _invoke(self._work, run_id, given, operations + _STEPS_BESIDE)
        self.watcher.done(f"{run_id}.{operations - 1}")
        return state["returned"]

    async def hold(self, run_id: str, operations: int) -> None:
        raise NotImplementedError

    async def replay(self, run_id: str, operations: int) -> float:
        raise NotImplementedError

    async def converse(self, turns: int) -> None:
        graph = _conversation(turns).compile(checkpointer=self._saver)
        given = {"messages": [question(0)]}
        await _invoke(graph, "conversation", given, turns + _STEPS_BESIDE)

    async def converse_by_turns(self, turns: int) -> None:
        graph = _one_turn().compile(checkpointer=self._saver)
        messages: list[Message] = []
        for turn in range(turns):
            messages.append(question(turn))
            state = await _invoke(graph, f"turn-{turn}", {"messages": messages})
            messages = state["messages"]


@task
async def _ask(turn: int, messages: list[Message]) -> Message:
    return reply(turn)


def _entrypoint(saver: Any, watcher: Watcher) -> Any:
    @task
    async def touch(name: str, payload: str, seed: int) -> str:
        watcher.called(name)
        return answer(len(payload), seed)

    @task
    async def held(run_id: str) -> None:
        watcher.held(run_id)
        await asyncio.Event().wait()

    @entrypoint(checkpointer=saver)
    async def working(given: list[Any]) -> int:
        run_id, operations, size, holds = given
        returned = await work(watcher, touch, run_id, operations, size)
        if holds:
            await held(run_id)
        return returned

    return working


class _Progress(TypedDict):
    run_id: str
    operations: int
    size: int
    number: int
    returned: int
    asked: str
    answered: str


def _stepping(watcher: Watcher) -> StateGraph[Any]:
    async def touch(state: _Progress) -> dict[str, Any]:
        number, size = state["number"], state["size"]
        if number:
            watcher.done(f"{state['run_id']}.{number - 1}")
        watcher.called(f"{state['run_id']}.{number}")
        seed = seed_of(number, size)
        return {
            "number": number + 1,
            "returned": state["returned"] + 1,
            "asked": text(size, seed),
            "answered": answer(size, seed),
        }

    graph = StateGraph(_Progress)
    graph.add_node("touch", touch)
    graph.add_edge(START, "touch")
    graph.add_conditional_edges(
        "touch", lambda state: "touch" if state["number"] < state["operations"] else END
    )
    return graph


class _Messages(TypedDict):
    messages: Annotated[list[Message], operator.add]


def _conversation(turns: int) -> StateGraph[Any]:
    def ask(state: _Messages) -> _Messages:
        turn = len(state["messages"]) // 2
        said = [reply(turn), *([question(turn + 1)] if turn + 1 < turns else [])]
        return {"messages": said}

    graph = StateGraph(_Messages)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges(
        "ask", lambda state: "ask" if len(state["messages"]) < 2 * turns else END
    )
    return graph


def _one_turn() -> StateGraph[Any]:
    def ask(state: _Messages) -> _Messages:
        return {"messages": [reply(len(state["messages"]) // 2)]}

    graph = StateGraph(_Messages)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    return graph


def _thread(run_id: str) -> Any:
    return {"configurable": {"thread_id": run_id}}


async def _invoke(graph: Any, run_id: str, given: Any, steps: int = 25) -> Any:
    config = {**_thread(run_id), "recursion_limit": steps}
    return await graph.ainvoke(given, config=config, durability="sync")
