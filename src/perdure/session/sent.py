from __future__ import annotations

from typing import Any

from perdure.session import headers
from perdure.session.codec import FoldedMessage
from perdure.session.input_node import InputNode
from perdure.session.input_writer import InputWriter
from perdure.session.lifecycle import RunStatus
from perdure.session.message import WireMessage
from perdure.session.run import SessionInvocation
from perdure.session.run_node import RunInfo, RunNode
from perdure.session.steered import Steered, steer
from perdure.session.tree import Tree


class Sent:
    """An input that was sent, and the run that answers it.

    `invocation` is what an agent is given, so that it answers. `event_id` names the input,
    `input_codec_message_id` the message that it is, or is about.
    """

    def __init__(self, writer: InputWriter, message: WireMessage, session_name: str) -> None:
        self.event_id = message.header(headers.EVENT_ID)
        self.input_codec_message_id = message.header(headers.CODEC_MESSAGE_ID)
        self.invocation = SessionInvocation(self.event_id, session_name)
        self._goes_on_with = message.header(headers.RUN_ID)
        self._serial = message.serial
        self._writer = writer
        self._connection = writer.connection

    @property
    def run_id(self) -> str:
        """The run that answers; '' until its start is seen, but for one that goes on."""
        return self._goes_on_with or self._tree.led_to(self.input_codec_message_id)

    @property
    def run(self) -> RunInfo | None:
        """The run that answers, or None until it is seen."""
        node = self._node
        return node.info if node else None

    @property
    def messages(self) -> list[FoldedMessage]:
        """What was asked, and all that the run has come to."""
        node = self._node
        asked = self._tree.owner(node.parent) if node and node.parent else None
        if node is None:
            asked = self._tree.input(self.input_codec_message_id)
        found = [*asked.messages()] if isinstance(asked, InputNode) else []
        found += node.messages() if node else []
        return list({message.codec_message_id: message for message in found}.values())

    async def started(self, timeout_seconds: float | None = None) -> str:
        """Wait until an agent has started or resumed the run, and return its id.

        Raises `RunNotObserved` once the time is over, and `SessionClosed`.
        """
        what = f"the run that answers {self.event_id}"
        await self._connection.until(self._is_started, what, timeout_seconds)
        return self.run_id

    async def ended(self, timeout_seconds: float | None = None) -> RunInfo:
        """Wait until the run has ended, or is suspended until somebody answers; return it.

        Raises `RunNotObserved` once the time is over, and `SessionClosed`.
        """
        what = f"the end of the run that answers {self.event_id}"
        await self._connection.until(self._is_over, what, timeout_seconds)
        run = self.run
        assert run is not None  # it has ended
        return run

    async def cancel(self, *, event_id: str | None = None) -> None:
        """Ask for the run to be cancelled, also before it is started; does not wait for that.

        Durable when it returns: the cancel.
        """
        about = {headers.INPUT_CODEC_MESSAGE_ID: self.input_codec_message_id}
        if self.run_id:
            about[headers.RUN_ID] = self.run_id
        await self._writer.cancel(about, event_id)

    async def steer(self, content: Any, *, timeout_seconds: float | None = None) -> Steered:
        """Say something to the run while it goes on, once it is started.

        Durable when it returns: what was said. Raises like `ClientSession.steer`, and
        `RunNotObserved` if the run is not started in time.
        """
        run_id = await self.started(timeout_seconds)
        return await steer(self._writer, run_id, content)

    @property
    def _tree(self) -> Tree:
        return self._connection.reader.tree

    @property
    def _node(self) -> RunNode | None:
        return self._tree.run(self.run_id) if self.run_id else None

    def _is_started(self) -> bool:
        node = self._node
        if node is None or not self._goes_on_with:
            return node is not None
        awake = node.info.lifecycle.status is not RunStatus.SUSPENDED
        return awake or node.resumed_since(self._serial)

    def _is_over(self) -> bool:
        run = self.run
        if run is None or run.lifecycle.status is RunStatus.ACTIVE:
            return False
        return (run.lifecycle.end_serial or "") > self._serial
