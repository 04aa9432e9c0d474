from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from perdure.approvals import Answer, ApprovalKind, Approve, Deny, Result, shown_item
from perdure.canonical import encode
from perdure.engine.run_handle import RunHandle
from perdure.engine.turns import TurnRow, turn_id
from perdure.errors import (
    AlreadyResolved,
    InvalidSessionArgument,
    NotErasable,
    RunErased,
    UnknownApproval,
    UnknownRun,
    UnknownSession,
)
from perdure.mail import Mail

if TYPE_CHECKING:
    from perdure.ports import Channels
    from perdure.session.channel import Channel
    from perdure.session.client import ClientSession
    from perdure.session.codec import Codec
    from perdure.session.message import WireMessage
    from perdure.session.received import Received
    from perdure.session.run import SessionInvocation
    from perdure.session.session import AgentSession
    from perdure.session.store import SessionRow

_ID_BYTES: Final = 512
_SEEN_SECONDS: Final = 10.0
_READER: Final = "perdure"


class Sessions(Mail):
    """What people say to runs and see of them: sessions, and the runs that answer in them."""

    @property
    def channels(self) -> Channels:
        """Where the messages of sessions are; raises `EngineClosed` when the App is not open."""
        return self.engine.channels

    def channel(self, session: str, client_id: str) -> Channel:
        """Return a session as a client has it: to read it, and to write to it by hand."""
        return self.channels.channel(session, client_id)

    def client_session(
        self, session: str, client_id: str, codec: Codec | None = None
    ) -> ClientSession:
        """Return the side of a client on a session, which says things and sees what comes of them.

        It is to be connected, as by `async with`. What is said is answered by a run once somebody
        starts that: see `start_turn`. `codec` is None for UI messages.
        """
        from perdure.session.client import ClientSession
        from perdure.session.codec import UiMessageCodec

        channel = self.channel(session, client_id)
        return ClientSession(
            channel,
            codec or UiMessageCodec(),
            client_id=client_id,
            session_name=session,
            clock=self.engine.store.clock,
        )

    async def start_turn(
        self,
        invocation: SessionInvocation,
        function: str | None = None,
        *,
        deadline_seconds: float | None = None,
    ) -> RunHandle[Any]:
        """Let a run answer what was said in a session, and return it; the same for the same input.

        What was said to a run goes to that run instead: an answer that it waits for, or words that
        its agent hears before it asks its model next. `function` names one that `App.turn` has
        registered; None where there is one. `deadline_seconds` is that of `start`.

        Durable when it returns: the run, or what it was sent.
        If it raises: `RunNotObserved` where the session has no such input, `UnknownFunction`,
        `UnknownRun` where what it names is no run of this session, `UnknownApproval`, `RunEnded`,
        `RunErased`, `AlreadyResolved`, or a `SessionError` or `StorageError`; the same call may be
        made again.
        """
        from perdure.session.codec import UiMessageCodec
        from perdure.session.headers import RUN_ID, SUPERSEDES
        from perdure.session.session import AgentSession

        name, event_id = invocation.session_name, invocation.input_event_id
        if not (event_id.isprintable() and 0 < len(event_id.encode()) <= _ID_BYTES):
            raise InvalidSessionArgument(
                f"the event id of an input is 1 to {_ID_BYTES} bytes of text that can be shown in"
                f" one line, not {event_id[:_ID_BYTES]!a}"
            )
        clock = self.engine.store.clock
        async with AgentSession(self.channel(name, _READER), UiMessageCodec(), clock=clock) as read:
            said = await read.find_input(invocation, _SEEN_SECONDS)
            if run_id := said.header(RUN_ID):
                turn = await self._run_of(name, run_id)
                await self._pass_on(read, turn, run_id, said)
                return RunHandle(self.engine, turn)
        if left := said.header(SUPERSEDES):
            left = await self._run_of(name, left)
        registered = self.engine.turn(function)
        run_id = turn_id(name, event_id)
        asked = {"session": name, "event_id": event_id}
        handle = await self.engine.start(registered.name, asked, run_id, None, deadline_seconds)
        row = await self.engine.find(run_id)
        if row.tombstone is not None:
            raise RunErased(run_id, by=row.tombstone.by, why=row.tombstone.why)
        await self.engine.store.note_turn(TurnRow(run_id, name, event_id))
        if left:
            # The run that waited for this result is left for the one that begins with it.
            await self.engine.cancel(left)
        return handle

    async def cancel_turn(self, session: str, run_id: str, client_id: str) -> None:
        """Cancel a run of a session, in the name of a client, for all who watch.

        Durable when it returns: that it is to be cancelled; one that nobody executes is.
        If it raises: `UnknownRun` where this is no run of the session, or a `SessionError` or
        `StorageError`; the same call may be made again.
        """
        turn = await self._run_of(session, run_id)
        async with self.client_session(session, client_id) as client:
            await client.cancel(run_id)
        await self.engine.cancel(turn)

    async def sessions(self, *, limit: int = 100) -> Sequence[SessionRow]:
        """Return the sessions in the store that were written to last, the last one first."""
        return await self.engine.store.list_sessions(limit)

    async def erase_session(self, session: str, *, by: str, why: str) -> Sequence[str]:
        """Delete what the store holds of a session: its messages, and its runs as `erase` does.

        Returns the ids of the runs, of which tombstones are left. Durable when it returns: the
        deletions, fsynced. If it raises: `UnknownSession` where there is nothing of it, or
        `NotErasable` where a run has not ended, and nothing was deleted; after a `StorageError` or
        a crash, erasing again finishes what was begun.
        """
        store = self.engine.store
        run_ids = [turn.run_id for turn in await store.list_turns(session)]
        for run_id in run_ids:
            row = await self.engine.find(run_id)
            if not row.state.ended:
                raise NotErasable(
                    f"run {run_id} of the session {session!r} is {row.state.value}: only runs that"
                    " have ended are erased; cancel it first"
                )
        for run_id in run_ids:
            await self.engine.erase(run_id, by=by, why=why, rewrite=False)
        if not await store.erase_session(session) and not run_ids:
            raise UnknownSession(f"there is nothing of a session {session!r} in this store")
        return run_ids

    async def _run_of(self, session: str, run_id: str) -> str:
        """Return the run that a session knows under an id, which may say how often it was begun."""
        for name in (run_id, run_id.rpartition(".")[0]):
            turn = await self.engine.store.read_turn(name) if name else None
            if turn is not None and turn.session == session:
                return name
        raise UnknownRun(f"there is no run {run_id!r} in the session {session!r}")

    async def _pass_on(
        self, read: AgentSession, run_id: str, shown_as: str, said: WireMessage
    ) -> None:
        """Send what was said to a run to where that hears it, once however often it is passed."""
        from perdure.engine.letters import letter_of
        from perdure.session.codec.ui_inputs import ANSWERS, USER_MESSAGE

        sent = read.received(said)
        if sent.kind in ANSWERS and read.is_cancelled(shown_as):
            # It was cancelled while it waited, and nobody was there to hear: no answer undoes that.
            await self.engine.cancel(run_id)
        elif sent.kind in ANSWERS:
            await self._answer(read, run_id, shown_as, sent)
        elif sent.kind == USER_MESSAGE:
            store = self.engine.store
            await store.send_message(letter_of(run_id, sent, store.clock.now()))
        else:
            raise InvalidSessionArgument(f"no run takes what was sent to {run_id}: {sent.kind!r}")

    async def _answer(self, read: AgentSession, run_id: str, shown_as: str, sent: Received) -> None:
        """Answer what a run asks for; the same answer once more changes nothing."""
        call = str(sent.payload.get("toolCallId", ""))
        answer = _answer_of(sent.payload)
        if isinstance(answer, Result):
            item = await self._awaited(run_id, read.read_call(shown_as, call))
        else:
            item = read.find_approval(shown_as, call)
            if item is not None:
                item = item.removeprefix(shown_item(run_id, ""))
        if item is None:
            raise UnknownApproval(f"the run {run_id} does not ask about the call {call!r}")
        try:
            await self.resolve(run_id, item, answer, by=sent.client_id)
        except AlreadyResolved as known:
            if known.winner != answer:
                raise

    async def _awaited(self, run_id: str, call: dict[str, Any] | None) -> str | None:
        """Return the item that waits for the result of a call: of its tool, with its arguments."""
        if call is None:
            return None
        name = call.get("toolName") or str(call["type"]).removeprefix("tool-")
        arguments = encode(call.get("input", {}))
        for item in await self.engine.store.list_approvals(run_id):
            asked = item.kind, item.name, item.arguments_json
            if asked == (ApprovalKind.EXTERNAL, name, arguments):
                return item.item_id
        return None


def _answer_of(payload: dict[str, Any]) -> Answer:
    if "approved" in payload:
        reason = str(payload.get("reason", ""))
        return Approve() if payload["approved"] is True else Deny(reason)
    failed = "message" in payload
    return Result(payload["message"] if failed else payload.get("output"), is_error=failed)
