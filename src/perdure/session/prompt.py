from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from perdure.session.codec import FoldedMessage
from perdure.session.input_node import InputNode
from perdure.session.lifecycle import RunStatus
from perdure.session.run_node import RunNode
from perdure.session.tool_call import has_open_call
from perdure.session.tree import Node, Tree


def prompt(
    tree: Tree, anchor: str | None, *, run_id: str = "", regenerates: str | None = None
) -> list[FoldedMessage]:
    """Return the messages that an agent is to answer and those of its run, oldest first.

    They are those on the way from the first message to `anchor`, which the run follows, and what
    the run has come to itself. What came to no answer is left out: a run on the way that is not
    complete, and the input that it was of. Nothing of `regenerates`, the message that is to be
    replaced, nor behind it; what its run had said before is there as far as that is whole. Steering
    that no output has taken up yet stands at the end.
    """
    own = tree.run(run_id) if run_id else None
    before = _before(tree, anchor, own, regenerates)
    return before + (_steered_last(own) if own else [])


def question(
    tree: Tree, anchor: str | None, *, run_id: str, regenerates: str | None = None
) -> list[FoldedMessage]:
    """Return the part of a prompt that the run has not come to itself.

    Of the run's own it has what was sent to it for a beginning, and no steering.
    """
    own = tree.run(run_id)
    before = _before(tree, anchor, own, regenerates)
    return [*before, *_begun_with(tree, anchor, own)] if own else before


def _before(
    tree: Tree, anchor: str | None, own: RunNode | None, regenerates: str | None
) -> list[FoldedMessage]:
    found: list[Sequence[FoldedMessage]] = []
    node = tree.owner(anchor) if anchor else None
    seen = {own.key} if own else set[str]()
    if own is not None and _is_begun_by(node, own):
        node = _parent(tree, own)
    # Where the node before says so: whether this one is kept, and from where on it is replaced.
    kept: bool | None = True
    cut = (regenerates, anchor) if regenerates else None
    while node is not None and node.key not in seen:
        seen.add(node.key)
        if isinstance(node, RunNode):
            said = _until(node.messages(), cut)
            is_complete = node.info.lifecycle.status is RunStatus.COMPLETE
            if not is_complete and kept and cut:
                said = _whole(node, said)
            kept = is_complete or (kept is True and cut is not None)
            cut = (node.regenerates, node.parent) if node.regenerates else None
            found.append(said if kept else [])
        else:
            kept = _is_open(tree, node) if kept is None else kept
            found.append(node.messages() if kept else [])
            kept, cut = None, None
        node = _parent(tree, node)
    return [message for messages in reversed(found) for message in messages]


def _begun_with(tree: Tree, anchor: str | None, own: RunNode) -> Sequence[FoldedMessage]:
    node = tree.owner(anchor) if anchor else None
    begun_by = node if isinstance(node, RunNode) and _is_begun_by(node, own) else own
    return begun_by.given()


def _is_begun_by(node: Node | None, own: RunNode) -> bool:
    """Whether a run begins with what belongs to a node: to itself, or to one it stands in for."""
    return node is own or (isinstance(node, RunNode) and node.parent == own.parent is not None)


def _is_open(tree: Tree, asked: InputNode) -> bool:
    """Whether an input that was followed by another may be answered still, as far as is known."""
    runs = [node for node in tree.nodes if isinstance(node, RunNode) and node.parent == asked.key]
    status = runs[-1].info.lifecycle.status if runs else RunStatus.ACTIVE
    return status not in (RunStatus.CANCELLED, RunStatus.ERROR)


def _parent(tree: Tree, node: Node) -> Node | None:
    return tree.owner(node.parent) if node.parent else None


def _until(
    messages: Sequence[FoldedMessage], cut: tuple[str | None, str | None] | None
) -> Sequence[FoldedMessage]:
    """Return messages up to one that is replaced, or to the last one in front of that."""
    target, last = cut or (None, None)
    for index, message in enumerate(messages):
        if target and message.codec_message_id in (target, last):
            return messages[: index + (message.codec_message_id == last)]
    return messages


def _whole(run: RunNode, messages: Sequence[FoldedMessage]) -> list[FoldedMessage]:
    """Return messages up to the first that was not finished, or has a call without an outcome."""
    broken = run.unfinished
    return [
        *takewhile(
            lambda one: one.codec_message_id not in broken and not has_open_call(one), messages
        )
    ]


def _steered_last(run: RunNode) -> list[FoldedMessage]:
    waiting = set(run.unanswered)
    messages = run.messages()
    answered = [message for message in messages if message.codec_message_id not in waiting]
    return answered + [message for message in messages if message.codec_message_id in waiting]
