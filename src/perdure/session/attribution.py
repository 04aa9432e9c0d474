from __future__ import annotations

import msgspec

from perdure.session import headers
from perdure.session.message import WireMessage
from perdure.session.run_node import RunNode
from perdure.session.tree import Tree


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a run is and what it follows, as all that is written for it says.

    `owner` is whose run it is, `input_client_id` who sent what this invocation answers; None where
    it answers nothing that was sent. `anchor` is the message that the run is an answer to, `parent`
    the one that it follows in the conversation.
    """

    run_id: str
    invocation_id: str
    owner: str = ""
    input_client_id: str | None = None
    input_id: str | None = None
    anchor: str | None = None
    parent: str | None = None
    fork_of: str | None = None
    regenerates: str | None = None

    def run_event(self) -> dict[str, str]:
        """Return the headers of an event of the run's life."""
        return {**self._who(), **self._asked()}

    def run_start(self) -> dict[str, str]:
        """Return the headers of the run's start."""
        return {**self.run_event(), **self._place()}

    def step_event(self, step_id: str, client_id: str) -> dict[str, str]:
        """Return the headers of the start or the end of a step."""
        return {**self._who(), headers.STEP_ID: step_id, headers.STEP_CLIENT_ID: client_id}

    def output(self, message_id: str) -> dict[str, str]:
        """Return the headers of an output, but those of its step.

        The parent is that of the run, also where the run was resumed: a reader who sees an output
        first makes the run of it, and a message of the run itself would be no place for it.
        """
        about = {headers.ROLE: "assistant", headers.CODEC_MESSAGE_ID: message_id}
        return {**about, **self._who(), **self._asked(), **self._place()}

    def _who(self) -> dict[str, str]:
        who = {headers.RUN_ID: self.run_id, headers.RUN_CLIENT_ID: self.owner}
        who[headers.INVOCATION_ID] = self.invocation_id
        if self.input_client_id is not None:
            who[headers.INPUT_CLIENT_ID] = self.input_client_id
        return who

    def _asked(self) -> dict[str, str]:
        known = self.input_id is not None
        return {headers.INPUT_CODEC_MESSAGE_ID: self.input_id or ""} if known else {}

    def _place(self) -> dict[str, str]:
        place = {
            headers.PARENT: self.parent,
            headers.FORK_OF: self.fork_of,
            headers.MSG_REGENERATE: self.regenerates,
        }
        return {name: value for name, value in place.items() if value}


def attribute(
    tree: Tree, trigger: WireMessage | None, *, run_id: str, invocation_id: str
) -> Attribution:
    """Return whose a run is, from what triggered this invocation and what is known of the run.

    The start of the run knows best whose it is and what it follows. Before there is one, the
    trigger says so.
    """
    who = Attribution(run_id=run_id, invocation_id=invocation_id)
    if trigger is not None:
        who = _of_trigger(tree, trigger, who)
    run = tree.run(run_id)
    if run is None or not run.started:
        return who
    known = run.info
    return msgspec.structs.replace(
        who,
        owner=known.client_id,
        anchor=who.anchor or known.parent,
        parent=known.parent,
        fork_of=known.fork_of,
        regenerates=known.regenerates,
    )


def _of_trigger(tree: Tree, trigger: WireMessage, who: Attribution) -> Attribution:
    input_id = trigger.header(headers.CODEC_MESSAGE_ID)
    parent = trigger.header(headers.PARENT) or None
    node = tree.owner(input_id) if input_id else None
    anchor = input_id if node is not None else parent
    return msgspec.structs.replace(
        who,
        owner=trigger.header(headers.RUN_CLIENT_ID),
        input_client_id=trigger.client_id,
        input_id=input_id,
        anchor=anchor,
        parent=parent if isinstance(node, RunNode) else anchor,
        fork_of=trigger.header(headers.FORK_OF) or None,
        regenerates=trigger.header(headers.MSG_REGENERATE) or None,
    )
