from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from perdure.approvals import Answer, Approval, NewAnswer, check_answer, encode_answer
from perdure.canonical import INPUT_LIMIT_BYTES, check_size
from perdure.engine.ends import possible_run
from perdure.errors import InvalidInvocation, MessageConflict, UnknownApproval
from perdure.external_events import EventAnswer, parts_of
from perdure.ids import check_identifier, is_identifier
from perdure.inbox import Message, NewMessage

if TYPE_CHECKING:
    from perdure.engine.engine import Engine

_ID_CHARACTERS: Final = 200
_RESERVED: Final = "perdure:"


class Mail(ABC):
    """What reaches runs from outside, whether or not somebody executes them."""

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine of the open App; raises `EngineClosed` when it is not open."""

    async def send(
        self,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,  # noqa: A002
        by: str = "",
    ) -> Message:
        """Send a message to a run, for its `context.wait_for(name)`, and return how it stands.

        It waits in the run's inbox until one of its operations takes it, also when nothing waits
        for it yet, and in the order of its name. `payload` is what an operation takes. `id` is the
        sender's: the same message sent again under it is there once. Without, it gets an id of its
        own. `by` says who sends it, for people.

        Durable when it returns: the message, fsynced; a run that was suspended until it came goes
        on.
        If it raises: nothing was sent. `UnknownRun`, `RunEnded`, `RunErased`, `MessageConflict`
        when another one was sent under the id, `InvalidPayload`, `InvalidInvocation` for a
        malformed name or id, or a `StorageError`.
        """
        return await self._send(run_id, name, payload, id, by, edit=False)

    async def edit(
        self,
        run_id: str,
        id: str,  # noqa: A002
        payload: Any,
        *,
        by: str = "",
    ) -> Message:
        """Replace what a message says that the run has not taken yet; it keeps its turn.

        Durable when it returns: the new payload, fsynced.
        If it raises: nothing was changed. As `send`; `MessageTaken` when it is too late, and
        `MessageConflict` when there is no message under the id.
        """
        for message in await self.messages(run_id):
            if message.message_id == id:
                return await self._send(run_id, message.name, payload, id, by, edit=True)
        raise MessageConflict(f"no message was sent to run {run_id} under the id {id!r}")

    async def withdraw(self, run_id: str, id: str) -> bool:  # noqa: A002
        """Take back a message that the run has not taken yet; return whether there was one.

        Durable when it returns: that it is gone, fsynced. Raises `MessageTaken`.
        """
        _check_id(id)
        return await self.engine.store.withdraw_message(possible_run(run_id), id)

    async def messages(self, run_id: str) -> Sequence[Message]:
        """Return the messages of a run, those that it took too, in the order in which they came.

        Raises `UnknownRun`.
        """
        await self.engine.find(run_id)
        return await self.engine.store.list_messages(run_id)

    async def resolve_event(self, token: str, payload: Any = None, *, by: str = "") -> Message:
        """Resolve an external event that an agent waits for; `payload` is a JSON value.

        Durable when it returns: the payload, fsynced; the run goes on.
        If it raises: as `send`; `MessageConflict` when it was resolved otherwise before.
        """
        return await self._settle_event(token, EventAnswer(payload=payload), by)

    async def fail_event(self, token: str, reason: str, *, by: str = "") -> Message:
        """Tell an agent that an external event that it waits for will not come, and why.

        Durable when it returns and if it raises: as `resolve_event`.
        """
        return await self._settle_event(token, EventAnswer(failure=reason), by)

    async def _settle_event(self, token: str, answer: EventAnswer, by: str) -> Message:
        run_id, name = parts_of(token)
        failed = answer.failure is not None
        value = {"failure": answer.failure} if failed else {"payload": answer.payload}
        try:
            return await self.send(run_id, name, value, id=name, by=by)
        except MessageConflict as error:
            raise MessageConflict(
                f"the event {token!r} was resolved otherwise before: its first answer stands"
            ) from error

    async def approvals(
        self, run_id: str | None = None, *, open_only: bool = True, limit: int = 100
    ) -> Sequence[Approval]:
        """Return what runs asked for, oldest first: of any run or of one.

        By default only what still waits for an answer.
        """
        if run_id is not None and not is_identifier(run_id):
            return []
        return await self.engine.store.list_approvals(run_id, open_only=open_only, limit=limit)

    async def resolve(
        self,
        run_id: str,
        item_id: str,
        answer: Answer,
        *,
        by: str,
        expect_digest: str | None = None,
    ) -> Approval:
        """Answer what a run asks for with `Approve`, `Deny` or `Result`; return how it stands.

        Of any number of answers one wins. `by` says whose it is, and `expect_digest` binds it to
        the arguments that were shown, by `Approval.digest`.

        Durable when it returns: the answer, fsynced; the run goes on.
        If it raises: nothing was written. `AlreadyResolved` with the answer that won,
        `ApprovalClosed` when the run does not wait any more, `ApprovalChanged`, `UnknownApproval`,
        `InvalidPayload` for an answer that is none to this, or a `StorageError`.
        """
        store = self.engine.store
        if not (is_identifier(run_id) and is_identifier(item_id)):
            raise UnknownApproval(f"run {run_id!r} asked for nothing under the id {item_id!r}")
        found = await store.read_approval(run_id, item_id)
        if found is not None:
            check_answer(found.kind, answer)
        _check_signer(by)
        what = f"the answer to {item_id}"
        check_size(encode_answer(answer), what=what, limit_bytes=INPUT_LIMIT_BYTES)
        new = NewAnswer(answer, by, store.clock.now())
        return await store.answer_approval(run_id, item_id, new, expect_digest)

    async def _send(
        self, run_id: str, name: str, payload: Any, message_id: str | None, by: str, *, edit: bool
    ) -> Message:
        engine = self.engine
        possible_run(run_id)
        check_identifier(name, "message name")
        _check_signer(by)
        if message_id is None:
            message_id = os.urandom(16).hex()
        _check_id(message_id)
        what = f"message {name}"
        document = engine.codec.encode(payload, what=what)
        check_size(document, what=what, limit_bytes=INPUT_LIMIT_BYTES)
        now = engine.store.clock.now()
        message = NewMessage(run_id, message_id, name, document, by, now)
        return await engine.store.send_message(message, edit=edit)


def _check_signer(by: object) -> None:
    if not isinstance(by, str) or len(by) > _ID_CHARACTERS:
        raise InvalidInvocation(
            f"who sends or answers is a text of at most {_ID_CHARACTERS} characters, not"
            f" {repr(by)[: _ID_CHARACTERS + 2]}"
        )


def _check_id(message_id: str) -> None:
    if not (message_id.isprintable() and 0 < len(message_id) <= _ID_CHARACTERS):
        raise InvalidInvocation(
            f"the id of a message is 1 to {_ID_CHARACTERS} characters that can be shown in one"
            f" line, not {message_id[: _ID_CHARACTERS + 1]!r}"
        )
    if message_id.startswith(_RESERVED):
        raise InvalidInvocation(f"the id of a message does not begin with {_RESERVED!r}")
