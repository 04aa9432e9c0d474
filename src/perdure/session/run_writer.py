from __future__ import annotations

from collections.abc import Callable

from perdure.errors import InvalidSessionArgument
from perdure.session.attribution import Attribution
from perdure.session.connection import Connection
from perdure.session.incoming import Incoming
from perdure.session.lifecycle import ENDS, RunStatus
from perdure.session.output_writer import OutputWriter


class RunWriter:
    """What a run and its steps write with: whose it is, and which step has its turn."""

    def __init__(
        self, connection: Connection, incoming: Incoming, new_id: Callable[[], str]
    ) -> None:
        self.connection = connection
        self.new_id = new_id
        self.cancelled = incoming.cancelling.cancelled
        self.steering = incoming.steering
        self.who: Attribution | None = None
        """None until the run is open."""
        self.ended = False
        self.last_client_id: str | None = None
        self.failed_step: str | None = None
        """The id of the last step, if it failed."""
        self._turn: object | None = None

    def check_open(self) -> Attribution:
        """Return whose the run is. Raises `InvalidSessionArgument` unless it is open."""
        self.connection.require()
        if self.who is None:
            raise InvalidSessionArgument("the run is not open; await `start()` or `load()` first")
        return self.who

    @property
    def status(self) -> RunStatus:
        """Where the run stands, as far as it is seen."""
        run = self.connection.reader.tree.run(self.who.run_id) if self.who else None
        return run.info.lifecycle.status if run else RunStatus.ACTIVE

    def check_publishable(self) -> Attribution:
        """Return whose the run is. Raises `InvalidSessionArgument` if it takes no output."""
        who = self.check_open()
        if self.ended:
            raise InvalidSessionArgument(f"the run {who.run_id} was suspended or ended here")
        if self.status in ENDS:
            raise InvalidSessionArgument(f"the run {who.run_id} has ended: {self.status}")
        return who

    def check_idle(self) -> None:
        """Raise `InvalidSessionArgument` while a step has its turn."""
        if self._turn is not None:
            raise InvalidSessionArgument(
                "another step of the run is open; end it first, and start another run for work"
                " that goes on at the same time"
            )

    def take_turn(self, step: object) -> None:
        """Let a step have its turn. Raises `InvalidSessionArgument` if another has it."""
        if self._turn is not step:
            self.check_idle()
            self._turn = step

    def leave_turn(self, step: object) -> None:
        """Let another step have its turn."""
        if self._turn is step:
            self._turn = None

    @property
    def turn(self) -> object | None:
        """The step that has its turn."""
        return self._turn

    def client_of_steps(self) -> str:
        """Return who steps are of, unless they say: who the last step was of, here or before."""
        if self.last_client_id is not None:
            return self.last_client_id
        who = self.check_open()
        run = self.connection.reader.tree.run(who.run_id)
        steps = reversed(run.info.steps if run else [])
        known = next((step.step_client_id for step in steps if step.step_client_id), None)
        return known or who.input_client_id or ""

    def output(
        self, step: Callable[[], dict[str, str]], message_id: str | None = None
    ) -> OutputWriter:
        """Return what writes one message, with the headers of its step; None for a new one."""
        who, message_id = self.check_publishable(), message_id or self.new_id()
        encoder = self.connection.codec.encoder(message_id)
        about = {**who.output(message_id), **self.steering.begin_output()}
        return OutputWriter(self.connection, encoder, lambda: {**about, **step()})

    async def step_event(self, name: str, step_id: str, client_id: str, **more: str) -> str:
        """Write the start or the end of a step; return its serial."""
        named = {header.replace("_", "-"): value for header, value in more.items()}
        event = {**self.check_open().step_event(step_id, client_id), **named}
        return await self.connection.publish(name, event)
