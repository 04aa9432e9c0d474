from __future__ import annotations

from perdure.session import headers
from perdure.session.codec import Codec, Input
from perdure.session.input_node import InputNode
from perdure.session.message import Action, WireMessage
from perdure.session.message_log import Change, MessageLog
from perdure.session.requests import Requests
from perdure.session.run_node import RunNode

Node = InputNode | RunNode


class Tree:
    """A conversation with all of its branches, made of the messages of one channel.

    It is a function of the messages that were seen: neither their order, nor whether one came as
    it was written or later from history, makes a difference to it.
    """

    def __init__(self, codec: Codec) -> None:
        self.requests = Requests()
        self.revision = 0
        """Changes with the shape of the tree, and not with every append to a message."""
        self._codec = codec
        self._log = MessageLog()
        self._inputs: dict[str, InputNode] = {}
        self._runs: dict[str, RunNode] = {}
        # Whose a message is, and to which run an input has led, as the lowest serial has it.
        self._owners: dict[str, tuple[str, str]] = {}
        self._led_to: dict[str, tuple[str, str]] = {}
        # Results of client tools that begin a run: by the message that they were sent for.
        self._forks: dict[str, dict[str, WireMessage]] = {}
        self._superseded: set[str] = set()

    def apply(self, delivery: WireMessage) -> Change | None:
        """Take in a delivery of the channel; return None if it changes nothing.

        Messages that channels do not store are passed over, as are those of somebody else.
        """
        change = None if delivery.ephemeral else self._log.receive(delivery)
        if change is None:
            return None
        message = change.after
        run_id = message.header(headers.RUN_ID)
        self.revision += delivery.action is not Action.APPEND
        self.requests.note(message)
        self._link(message, run_id)
        if message.name in headers.RUN_LIFECYCLE or message.name in headers.STEP_LIFECYCLE:
            if run_id:
                self._run(run_id).note(message)
        elif message.name in (headers.AI_INPUT, headers.AI_OUTPUT):
            self._content(change, run_id)
        return change

    @property
    def nodes(self) -> list[Node]:
        """The nodes in the order of their serials."""
        runs = [run for run in self._runs.values() if run.exists]
        return sorted([*self._inputs.values(), *runs], key=lambda node: node.serial)

    def run(self, run_id: str) -> RunNode | None:
        """Return a run, or None if nothing is known of it but perhaps its end."""
        found = self._runs.get(run_id)
        return found if found and found.exists else None

    def input(self, codec_message_id: str) -> InputNode | None:
        """Return what a person said under an id."""
        return self._inputs.get(codec_message_id)

    def owner(self, codec_message_id: str) -> Node | None:
        """Return the node that a message is of, or to which an input has led."""
        _, key = self._owners.get(codec_message_id, ("", codec_message_id))
        node = self._inputs.get(key) or self.run(key)
        if node is None and key in self._led_to:
            node = self.run(self._led_to[key][1])
        return node

    def led_to(self, codec_message_id: str) -> str:
        """Return the id of the run that an input has led to; '' while none is seen."""
        return self._led_to.get(codec_message_id, ("", ""))[1]

    def is_superseded(self, run_id: str) -> bool:
        """Whether a run was left for another, which goes on with the result of its tool."""
        return run_id in self._superseded

    def _run(self, run_id: str) -> RunNode:
        if run_id not in self._runs:
            self._runs[run_id] = RunNode(run_id, self._codec)
        return self._runs[run_id]

    def _link(self, message: WireMessage, run_id: str) -> None:
        """Note to which run an input has led, as the agent's messages say."""
        led = message.header(headers.INPUT_CODEC_MESSAGE_ID)
        if not led or not run_id or led == run_id or message.name == headers.AI_CANCEL:
            return
        known = self._led_to.get(led)
        if known is None or message.serial < known[0]:
            self._led_to[led] = (message.serial, run_id)
            if known is None or known[1] != run_id:
                self._move_fork(led, known[1] if known else led, run_id)

    def _content(self, change: Change, run_id: str) -> None:
        message = change.after
        events = self._codec.decode(message)
        if not events and change.before is not None:
            events = self._codec.decode(change.before)
        if not events:
            return
        key = message.header(headers.CODEC_MESSAGE_ID)
        sent = any(isinstance(event, Input) for event in events)
        if run_id:
            self._own(key, message.serial, run_id)
            self._run(run_id).put(message)
        elif sent and message.header(headers.ROLE) == "user":
            self._own(key, message.serial, key)
            if key not in self._inputs:
                self._inputs[key] = InputNode(key, self._codec)
            self._inputs[key].put(message)
        elif sent:
            self._fork(key, message)

    def _own(self, codec_message_id: str, serial: str, key: str) -> None:
        known = self._owners.get(codec_message_id)
        if codec_message_id and (known is None or serial < known[0]):
            self._owners[codec_message_id] = (serial, key)

    def _fork(self, key: str, message: WireMessage) -> None:
        """Take in the result of a client's tool that leaves one run and begins another.

        The other has no id until an agent opens it; until then it goes by the id of the message.
        """
        self._own(key, message.serial, key)
        self._forks.setdefault(key, {})[message.serial] = message
        self._superseded.add(message.header(headers.SUPERSEDES))
        self._run(self._led_to.get(key, ("", key))[1]).put(message)

    def _move_fork(self, key: str, old: str, new: str) -> None:
        """Give what began a run over to the run that an agent has opened for it."""
        for serial, message in self._forks.get(key, {}).items():
            if old in self._runs:
                self._runs[old].log.remove(serial)
            self._run(new).put(message)
