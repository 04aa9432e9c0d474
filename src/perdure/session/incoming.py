from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.errors import CancelListenerFailed
from perdure.session import headers
from perdure.session.cancelling import Cancelling, OnCancel
from perdure.session.connection import Connection
from perdure.session.message import WireMessage
from perdure.session.received import Received, answers, received, steers
from perdure.session.run_node import RunNode
from perdure.session.steering import Steering
from perdure.wording import text_of

OnSteer = Callable[[Received], None]
"""Hears of what is said to a run while it goes on."""


class Incoming:
    """What clients have sent for a run, live or in history: its trigger, steering, cancels.

    All of it is read from the conversation and stays there. `event_id` is that of the trigger, ''
    where there is none; `run_id` changes once the trigger tells that another run goes on.
    """

    def __init__(
        self,
        connection: Connection,
        event_id: str,
        run_id: str,
        *,
        on_cancel: OnCancel | None,
        on_steer: OnSteer | None,
    ) -> None:
        self.run_id = run_id
        self.cancelling = Cancelling(on_cancel, connection.report)
        self.steering = Steering(self._unanswered)
        self._connection = connection
        self._event_id = event_id
        self._on_steer = on_steer
        self._open = False
        self._told: set[str] = set()
        self._looked_at = -1
        self._telling: asyncio.Handle | None = None
        self.attend()

    @property
    def trigger(self) -> WireMessage | None:
        """The input that the run is to answer, or None while it is not seen."""
        return self._connection.reader.tree.requests.trigger(self._event_id)

    @property
    def is_located(self) -> bool:
        """Whether the trigger is seen, if there is one."""
        return not self._event_id or self.trigger is not None

    @property
    def asked(self) -> Received | None:
        """The trigger as a client has sent it."""
        parts = self._connection.reader.tree.requests.parts(self._event_id)
        return received(parts, self._connection.codec) if parts else None

    @property
    def steers(self) -> list[Received]:
        """What was said to the run while it went on."""
        return steers(self._node, self._connection.codec) if self._node else []

    @property
    def answers(self) -> list[Received]:
        """What was answered to calls of the run."""
        return answers(self._node) if self._node else []

    def attend(self) -> None:
        """Look at what arrives from now on."""
        self._connection.watchers.add(self._look_again)

    def open(self) -> None:
        """Tell of steering from now on, of what waits already too."""
        self._open = True
        self.look()

    def close(self) -> None:
        """Look at nothing more."""
        self._connection.watchers.discard(self._look_again)
        self.cancelling.close()
        self._open = False

    def look(self) -> None:
        """Take in the cancels that have arrived, and tell of steering.

        A run that was resumed begins anew: what was sent before the input that resumes it, was
        meant for what went on then.
        """
        tree, trigger = self._connection.reader.tree, self.trigger
        self._looked_at = tree.revision
        input_id = trigger.header(headers.CODEC_MESSAGE_ID) if trigger else ""
        if cancels := tree.requests.cancels(run_id=self.run_id, input_id=input_id):
            since = self._node.invoked_at if self._node else ""
            if trigger and trigger.header(headers.RUN_ID):
                since = trigger.serial
            self.cancelling.note(cancel for cancel in cancels if cancel.serial > since)
        if self._open and self._on_steer and self._telling is None:
            # Later, since the parts of one message arrive one after the other.
            self._telling = asyncio.get_running_loop().call_soon(self._tell, self._on_steer)

    def _look_again(self) -> None:
        """Look, unless nothing has come since but more of what was there."""
        if self._looked_at != self._connection.reader.tree.revision:
            self.look()

    @property
    def _node(self) -> RunNode | None:
        return self._connection.reader.tree.run(self.run_id)

    def _unanswered(self) -> list[str]:
        return self._node.unanswered if self._node else []

    def _tell(self, on_steer: OnSteer) -> None:
        self._telling = None
        waiting = set(self._unanswered()) if self._open else set[str]()
        for said in self.steers if waiting else ():
            if said.codec_message_id not in waiting or said.event_id in self._told:
                continue
            self._told.add(said.event_id)
            try:
                on_steer(said)
            except Exception as error:  # noqa: BLE001  a boundary: it is anybody's code
                failed = CancelListenerFailed(
                    f"`on_steer` of the run {self.run_id} raised:"
                    f" {text_of(error) or type(error).__name__}"
                )
                failed.__cause__ = error
                self._connection.report(failed)
