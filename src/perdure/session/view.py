from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from perdure.errors import InvalidSessionArgument
from perdure.session import headers
from perdure.session.branch import Branch
from perdure.session.codec import FoldedMessage
from perdure.session.input_node import InputNode
from perdure.session.message import WireMessage
from perdure.session.run_node import RunInfo, RunNode
from perdure.session.tree import Node, Tree

_OF_NODES: Final = (
    headers.RUN_ID,
    headers.CODEC_MESSAGE_ID,
    headers.INPUT_CODEC_MESSAGE_ID,
)
"""What names the nodes that a message may change."""


class View:
    """What one reader sees of a conversation: one branch of its tree, as far back as was asked for.

    Messages that history brings are withheld until they are revealed; whatever arrives live is
    shown. A message that is shown already changes as history completes it.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._chosen: dict[str, int] = {}
        self._withheld: set[str] = set()
        self._known: tuple[int, Branch] | None = None

    @property
    def messages(self) -> list[FoldedMessage]:
        """The messages that are shown, oldest first."""
        every = self._branch().messages()
        return [message for _, message in every if message.codec_message_id not in self._withheld]

    @property
    def runs(self) -> list[RunInfo]:
        """The runs on the branch that is shown, oldest first.

        A run all of whose messages are withheld is too. One without messages is shown.
        """
        shown, hidden = set[str](), set[str]()
        branch = self._branch()
        for key, message in branch.messages():
            (hidden if message.codec_message_id in self._withheld else shown).add(key)
        runs = [node for node in branch.nodes if isinstance(node, RunNode)]
        return [run.info for run in runs if run.key in shown or run.key not in hidden]

    @property
    def tail(self) -> str | None:
        """The codec message id of the last message of the branch, shown or not."""
        last = None
        for _, message in self._branch().messages():
            last = message.codec_message_id
        return last

    @property
    def withheld(self) -> int:
        """How many messages of the branch are there and not shown yet."""
        every = self._branch().messages()
        return sum(message.codec_message_id in self._withheld for _, message in every)

    def reveal(self, limit: int = 10, *, since: str | None = None) -> int:
        """Show up to `limit` messages more, the newest that are withheld; return how many.

        Fewer mean that older ones have to be loaded, if there are any. With `since`, the serial
        that history has been loaded back to, runs and inputs that may begin before it wait.
        """
        if isinstance(limit, bool) or limit < 1:
            raise InvalidSessionArgument(f"the messages to reveal are 1 or more, not {limit!r}")
        whole = {node.key for node in self._tree.nodes if _is_whole(node, since)}
        every = [(key, m.codec_message_id) for key, m in self._branch().messages()]
        waiting = [(key, m) for key, m in every if m in self._withheld]
        more = [m for key, m in waiting if key in whole][-limit:]
        self._withheld.difference_update(more)
        return len(more)

    def select(self, key: str) -> None:
        """Show the run or input with this key wherever it has siblings, until another is chosen.

        It may be one that the tree does not hold yet, such as an edit that is about to be sent.
        """
        self._chosen[key] = max(self._chosen.values(), default=0) + 1
        self._known = None

    def receive(self, delivery: WireMessage) -> bool:
        """Take in a live delivery; return whether it changed the tree.

        An edit by somebody else does not take the branch away that is being looked at: what was
        shown in its place stays, until this reader chooses. A reader who comes later sees the edit.
        """
        shown = self._shown_instead_of(delivery)
        changed = self._tree.apply(delivery) is not None
        key = delivery.header(headers.CODEC_MESSAGE_ID)
        if changed:
            self._withheld.discard(key)
        if shown and self._tree.input(key) is not None and key not in self._chosen:
            self.select(shown)
        return changed

    def load(self, messages: Iterable[WireMessage]) -> None:
        """Take in messages of history, in any order, and withhold those that are new."""
        page = list(messages)
        keys = {message.header(name) for message in page for name in _OF_NODES}
        known = self._ids(keys)
        for message in page:
            self._tree.apply(message)
        self._withheld |= self._ids(keys) - known

    def _ids(self, keys: Iterable[str]) -> set[str]:
        """Return the ids of the messages of nodes, by keys or by a message of each."""
        tree = self._tree
        found = {it.key: it for key in keys if key for it in (tree.run(key), tree.owner(key)) if it}
        return {message.codec_message_id for node in found.values() for message in node.messages()}

    def _shown_instead_of(self, delivery: WireMessage) -> str | None:
        """Return the input that is shown where an edit is about to arrive, unless it is known."""
        source = self._tree.input(delivery.header(headers.FORK_OF))
        is_edit = delivery.name == headers.AI_INPUT and not delivery.header(headers.RUN_ID)
        if not is_edit or source is None:
            return None
        if self._tree.input(delivery.header(headers.CODEC_MESSAGE_ID)) is not None:
            return None
        branch = self._branch()
        selected = branch.siblings.selected(source)
        on_branch = any(node is selected for node in branch.nodes)
        return selected.key if on_branch and isinstance(selected, InputNode) else None

    def _branch(self) -> Branch:
        if self._known is None or self._known[0] != self._tree.revision:
            self._known = (self._tree.revision, Branch(self._tree, self._chosen))
        return self._known[1]


def _is_whole(node: Node, since: str | None) -> bool:
    """Whether nothing of a node can stand before a serial; nothing can where that is None.

    A run begins with its start, the parts of an input stand together.
    """
    if since is None:
        return True
    return node.started if isinstance(node, RunNode) else node.serial > since
