from __future__ import annotations

from typing import Any

import msgspec

from perdure.errors import InvalidSessionArgument
from perdure.session import headers
from perdure.session.codec import Saying
from perdure.session.input_writer import InputWriter, Sending, check_text
from perdure.session.lifecycle import ENDS, RunStatus
from perdure.session.message import WireMessage
from perdure.session.run_node import RunNode


class SteerOutcome(msgspec.Struct, frozen=True):
    """What became of steering: whether an output has taken it up, and where the run stands."""

    consumed: bool
    status: RunStatus


class Steered:
    """Something that was said to a run while it went on; `published` is its serial."""

    def __init__(self, writer: InputWriter, message: WireMessage) -> None:
        self.event_id = message.header(headers.EVENT_ID)
        self.codec_message_id = message.header(headers.CODEC_MESSAGE_ID)
        self.run_id = message.header(headers.RUN_ID)
        self.published = message.serial
        self._connection = writer.connection

    @property
    def consumed(self) -> bool:
        """Whether an output of the run says to have taken it up."""
        node = self._node
        return node is not None and self.codec_message_id in node.consumed

    async def outcome(self, timeout_seconds: float | None = None) -> SteerOutcome:
        """Wait for the end of the run, and return what became of it.

        At a suspension too, if it has been taken up by then. Raises `RunNotObserved` once the time
        is over, and `SessionClosed`.
        """
        what = f"the end of the run {self.run_id}"
        await self._connection.until(self._is_decided, what, timeout_seconds)
        return SteerOutcome(self.consumed, self._status)

    @property
    def _node(self) -> RunNode | None:
        return self._connection.reader.tree.run(self.run_id)

    @property
    def _status(self) -> RunStatus:
        node = self._node
        return node.info.lifecycle.status if node else RunStatus.ACTIVE

    def _is_decided(self) -> bool:
        status = self._status
        return status in ENDS or (status is RunStatus.SUSPENDED and self.consumed)


async def steer(
    writer: InputWriter,
    run_id: str,
    content: Any,
    *,
    message_id: str | None = None,
    event_id: str | None = None,
) -> Steered:
    """Say something to a run. Durable when it returns: what was said."""
    check_text("the id of a message", message_id)
    key = message_id or event_id or writer.new_id()
    about = {headers.CODEC_MESSAGE_ID: key, headers.RUN_ID: run_id}
    sending = Sending(said=Saying(content), headers=about, event_id=event_id)
    known = writer.sent_before(sending)
    if known is None:
        check_takes_input(run_id, writer.connection.reader.tree.run(run_id))
        known = await writer.write([sending])
    return Steered(writer, known)


def check_takes_input(run_id: str, node: RunNode | None) -> None:
    """Raise `InvalidSessionArgument` for a run that is seen to have ended."""
    status = node.info.lifecycle.status if node else RunStatus.ACTIVE
    if status in ENDS:
        raise InvalidSessionArgument(
            f"the run {run_id} has ended ({status}); send something new instead"
        )
