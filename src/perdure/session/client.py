from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

from perdure.clock import Clock, SystemClock
from perdure.errors import InvalidSessionArgument, SessionError
from perdure.session import headers
from perdure.session.channel import Channel
from perdure.session.codec import Approval, Codec, Regeneration, Said, Saying, ToolResult
from perdure.session.connection import Connection
from perdure.session.input_writer import InputWriter, Sending, check_text
from perdure.session.message import WireMessage
from perdure.session.run_node import RunNode
from perdure.session.sent import Sent
from perdure.session.steered import Steered, check_takes_input, steer
from perdure.session.tool_call import ToolCall, check_meant, find_call, fork, going_on
from perdure.session.view import View

_Found = TypeVar("_Found")


class ClientSession:
    """The side of a person on one channel: what is said to agents, and what is seen of them.

    `client_id` is whom the channel knows this client as. As a context manager it is connected, and
    closed at the end. What goes wrong behind the scenes is given to `on_error`.

    Whatever is sent may be given an `event_id`. Then it is sent once, from however many processes
    and tries: a caller that does not know whether something was sent sends the same again, and is
    given what stands on the channel; for something else under the same id there is `InputConflict`.
    Such ids are of the session as a whole, so one that comes from outside is made to name its
    client too. Sending raises `SessionClosed`, `ChannelNotReady`, `SessionForbidden`, and
    `SendFailed` once its tries are used up.
    """

    def __init__(
        self,
        channel: Channel,
        codec: Codec,
        *,
        client_id: str = "",
        session_name: str = "",
        clock: Clock | None = None,
        on_error: Callable[[SessionError], None] | None = None,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        report = _pass_over if on_error is None else on_error
        self._connection = Connection(channel, codec, clock or SystemClock(), report)
        self._new_id = new_id or (lambda: str(uuid4()))
        self._writer = InputWriter(self._connection, client_id, self._new_id)
        self._session_name = session_name

    @property
    def view(self) -> View:
        """The branch of the conversation that is shown."""
        return self._connection.reader.view

    async def connect(self) -> None:
        """Attach to the channel; done once, and again after it failed.

        Raises `SubscriptionFailed`, and `SessionClosed` once the session is closed.
        """
        await self._connection.open()

    async def close(self) -> None:
        """Leave the channel. Whoever waits for something to be seen is refused."""
        await self._connection.close()

    async def load_history(self) -> None:
        """Read the conversation to its beginning, and show all of it. Raises `HistoryFailed`."""
        await self._connection.load_history()
        if withheld := self.view.withheld:
            self.view.reveal(withheld)

    async def load_older(self, limit: int = 10) -> None:
        """Show `limit` messages more, if there are as many. Raises `HistoryFailed`."""
        while limit := self._connection.reader.reveal(limit):
            await self._connection.load_page()

    def changes(self) -> AsyncIterator[None]:
        """Yield now, and then whenever what is seen may have changed, until this is closed."""
        return self._connection.changes()

    async def send(
        self,
        content: Any,
        *,
        parent: str | None = None,
        message_id: str | None = None,
        event_id: str | None = None,
    ) -> Sent:
        """Say something: a text, a UI message, or a list of the parts of one.

        It follows the message `parent`: unless told, the last one of the branch that is shown; ''
        begins a conversation of its own. `message_id` is what the wire calls the message; it has
        one of its own unless told. Durable when it returns: the message.
        """
        check_text("the id of a message", message_id)
        self._connection.check_attached()
        said = Saying(content)
        if known := self._known(said, {}, event_id):
            return known
        if parent is None:
            parent = await self._tail()
        return await self._send(said, {headers.PARENT: parent}, message_id, event_id)

    async def edit(
        self,
        codec_message_id: str,
        content: Any,
        *,
        message_id: str | None = None,
        event_id: str | None = None,
    ) -> Sent:
        """Say something in the place of what a person had said, and show that branch.

        Durable when it returns: the message. Raises `InvalidSessionArgument` for a message that is
        not there, or that no person has sent.
        """
        check_text("the id of a message", message_id)
        self._connection.check_attached()
        tree = self._connection.reader.tree
        node = await self._find(
            lambda: tree.input(codec_message_id),
            f"no person has sent the message {codec_message_id}: only such a one can be edited",
        )
        key = message_id or event_id or self._new_id()
        about = {headers.PARENT: node.parent or "", headers.FORK_OF: codec_message_id}
        said = Saying(content)
        if known := self._known(said, about, event_id):
            return known
        self.view.select(key)
        return await self._send(said, about, key, event_id)

    async def regenerate(self, codec_message_id: str, *, event_id: str | None = None) -> Sent:
        """Ask for another answer in the place of a message that an agent wrote.

        Durable when it returns: the request. Raises `InvalidSessionArgument` for a message that is
        not there, or that no agent has written.
        """
        self._connection.check_attached()
        parent = await self._find(
            lambda: self._before(codec_message_id),
            f"no agent has written the message {codec_message_id}: only such a one can be given"
            " anew",
        )
        about = {headers.PARENT: parent, headers.MSG_REGENERATE: codec_message_id}
        if known := self._known(Regeneration(), about, event_id):
            return known
        return await self._send(Regeneration(), about, None, event_id)

    async def approve(
        self,
        tool_call_id: str,
        approved: bool,  # noqa: FBT001  it is what a person has said
        reason: str | None = None,
        *,
        run_id: str | None = None,
        event_id: str | None = None,
    ) -> Sent:
        """Answer an agent that asks whether it may call a tool; the suspended run goes on.

        `run_id` is the run that asks; None where one run alone waits under that id. Durable when it
        returns: the answer. Raises `InvalidSessionArgument` where no run that goes on has made the
        call, or where several wait.
        """
        self._connection.check_attached()
        call = await self._call(tool_call_id, run_id)
        said = Approval(tool_call_id, approved, reason)
        if known := self._known(said, _of(run_id), event_id):
            return known
        self._check_meant(tool_call_id, run_id)
        check_takes_input(call.run.key, call.run)
        return await self._send(said, going_on(call), call.message_id, event_id)

    async def answer(
        self,
        results: ToolResult | Sequence[ToolResult],
        *,
        in_place: bool = False,
        run_id: str | None = None,
        event_id: str | None = None,
    ) -> Sent:
        """Give an agent what tools of this client came to, for calls of one run.

        The conversation forks at the suspended run: another one begins with all that it had come
        to, so that of two clients that answer neither is in the way of the other. With `in_place`
        the run itself goes on. `run_id` is the run that has made the calls; None where one run
        alone waits under their ids. Durable when it returns: all of the results. Raises
        `InvalidSessionArgument` where no run that goes on has made the calls, or where several
        wait.
        """
        self._connection.check_attached()
        given = [results] if isinstance(results, ToolResult) else list(results)
        if not given:
            raise InvalidSessionArgument("there is no result to answer with")
        calls = [await self._call(result.tool_call_id, run_id) for result in given]
        for number, result in enumerate(given[:-1] if event_id else []):
            self._known(result, _of(run_id), f"{event_id}/{number}")
        if known := self._known(given[-1], _of(run_id), event_id):
            return known
        for result in given:
            self._check_meant(result.tool_call_id, run_id)
        run = calls[0].run
        if any(call.run is not run for call in calls):
            raise InvalidSessionArgument("the calls are of several runs; answer each run by itself")
        check_takes_input(run.key, run)
        event = event_id or self._new_id()
        if in_place:
            placed = [(result, going_on(call)) for result, call in zip(given, calls, strict=True)]
        else:
            placed = fork(run, given, lambda number: f"{event}/seed-{number}")
        *before, (last, about) = placed
        sendings = [
            Sending(said=result, headers=headers, event_id=f"{event}/{number}")
            for number, (result, headers) in enumerate(before)
        ]
        sendings.append(Sending(said=last, headers=about, event_id=event))
        return self._sent(await self._writer.write(sendings))

    async def steer(
        self,
        run_id: str,
        content: Any,
        *,
        message_id: str | None = None,
        event_id: str | None = None,
    ) -> Steered:
        """Say something to a run while it goes on; it takes that up when it next asks a model.

        Durable when it returns: what was said. Raises `InvalidSessionArgument` where the run is
        seen to have ended.
        """
        self._connection.check_attached()
        return await steer(self._writer, run_id, content, message_id=message_id, event_id=event_id)

    async def cancel(self, run: str | Sent, *, event_id: str | None = None) -> None:
        """Ask for a run to be cancelled, by its id or what was sent; does not wait for that.

        Durable when it returns: the cancel.
        """
        if isinstance(run, Sent):
            await run.cancel(event_id=event_id)
        elif run:
            await self._writer.cancel({headers.RUN_ID: run}, event_id)
        else:
            raise InvalidSessionArgument("the id of the run to cancel is empty")

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    def _known(self, said: Said, about: dict[str, str], event_id: str | None) -> Sent | None:
        check_text("the id of an event", event_id)
        found = self._writer.sent_before(Sending(said=said, headers=about, event_id=event_id))
        return self._sent(found) if found else None

    def _sent(self, message: WireMessage) -> Sent:
        return Sent(self._writer, message, self._session_name)

    async def _send(
        self, said: Said, about: dict[str, str], message_id: str | None, event_id: str | None
    ) -> Sent:
        key = message_id or event_id or self._new_id()
        told = {headers.CODEC_MESSAGE_ID: key, **about}
        sending = Sending(said=said, headers=told, event_id=event_id)
        return self._sent(await self._writer.write([sending]))

    async def _tail(self) -> str:
        """Return the last message of the branch, of history if nothing else is seen; '' if none."""
        while (tail := self.view.tail) is None and not self._connection.reader.complete:
            await self._connection.load_page()
        return tail or ""

    async def _call(self, tool_call_id: str, run_id: str | None) -> ToolCall:
        tree = self._connection.reader.tree
        return await self._find(
            lambda: find_call(tree, tool_call_id, run_id),
            f"no run that goes on has made the tool call {tool_call_id}",
        )

    def _check_meant(self, tool_call_id: str, run_id: str | None) -> None:
        if run_id is None:
            check_meant(self._connection.reader.tree, tool_call_id)

    def _before(self, codec_message_id: str) -> str | None:
        """Return the message that one of a run follows, once the start of that is seen."""
        node = self._connection.reader.tree.owner(codec_message_id)
        if not isinstance(node, RunNode) or not node.started:
            return None
        ids = [m.codec_message_id for m in node.messages() if m.message["role"] == "assistant"]
        if codec_message_id not in ids:
            return None
        every = [message.codec_message_id for message in node.messages()]
        at = every.index(codec_message_id)
        return every[at - 1] if at else node.parent or ""

    async def _find(self, find: Callable[[], _Found | None], lacking: str) -> _Found:
        """Return something of the conversation, and read history for as long as it takes."""
        while (found := find()) is None:
            if self._connection.reader.complete:
                raise InvalidSessionArgument(lacking)
            await self._connection.load_page()
        return found


def _of(run_id: str | None) -> dict[str, str]:
    return {} if run_id is None else {headers.RUN_ID: run_id}


def _pass_over(_: SessionError) -> None:
    """Do nothing about what nobody asked to hear of."""
