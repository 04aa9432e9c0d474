from __future__ import annotations

from collections.abc import Sequence

from perdure.session.codec import FoldedMessage
from perdure.session.input_node import InputNode
from perdure.session.lifecycle import RunStatus
from perdure.session.run_node import RunNode
from perdure.session.tree import Node, Tree


def prompt(
    tree: Tree, anchor: str | None, *, run_id: str = "", regenerates: str | None = None
) -> list[FoldedMessage]:
    """Return the messages that an agent is to answer, oldest first.

    They are those on the way from the first message to `anchor`, which the run follows, and what
    the run has come to itself. What came to no answer is left out: a run on the way that is not
    complete, and the input that it was of. Nothing of `regenerates`, the message that is to be
    replaced, nor behind it. Steering that no output has taken up yet stands at the end.
    """
    own = tree.run(run_id) if run_id else None
    before: list[Sequence[FoldedMessage]] = []
    seen = {run_id}
    node = tree.owner(anchor) if anchor else None
    if node is own and own is not None:
        node = tree.owner(own.parent) if own.parent else None
    while node is not None and node.key not in seen:
        seen.add(node.key)
        if isinstance(node, RunNode) and node.info.lifecycle.status is not RunStatus.COMPLETE:
            asked = _parent(tree, node)
            node = _parent(tree, asked) if isinstance(asked, InputNode) else asked
            continue
        before.append(_until(node.messages(), regenerates))
        node = _parent(tree, node)
    found = [message for messages in reversed(before) for message in messages]
    return found + (_steered_last(own) if own else [])


def _parent(tree: Tree, node: Node) -> Node | None:
    return tree.owner(node.parent) if node.parent else None


def _until(messages: Sequence[FoldedMessage], target: str | None) -> Sequence[FoldedMessage]:
    for index, message in enumerate(messages):
        if message.codec_message_id == target:
            return messages[:index]
    return messages


def _steered_last(run: RunNode) -> list[FoldedMessage]:
    waiting = set(run.unanswered)
    messages = run.messages()
    answered = [message for message in messages if message.codec_message_id not in waiting]
    return answered + [message for message in messages if message.codec_message_id in waiting]
