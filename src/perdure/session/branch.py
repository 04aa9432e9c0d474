from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perdure.session.codec import FoldedMessage
from perdure.session.input_node import InputNode
from perdure.session.run_node import RunNode
from perdure.session.tree import Node, Tree


class Branch:
    """What is shown of a conversation, from its first message to its last.

    Of nodes that stand in for one another one is shown: the one that was chosen last, by the
    rank that `chosen` has for its key, or else the newest. Those are runs on the same message, and
    inputs on the same message of which one was put in the place of the other. A run that was left
    for another is not shown at all, nor is what follows only what is not shown. A run that
    replaces another from one of its messages on is read there, and nowhere else.

    A branch holds until the tree has another `revision`; its messages may grow meanwhile.
    """

    def __init__(self, tree: Tree, chosen: Mapping[str, int]) -> None:
        self.siblings = Siblings(tree, chosen)
        self.nodes = _path(tree, self.siblings)
        self._inside = _regenerators(tree)
        self._elsewhere = {run.key for runs in self._inside.values() for run in runs}

    def messages(self) -> Iterator[tuple[str, FoldedMessage]]:
        """Yield the messages, oldest first, each with the key of its node."""
        for node in self.nodes:
            if node.key not in self._elsewhere:
                yield from self._read(node)

    def _read(self, node: Node) -> Iterator[tuple[str, FoldedMessage]]:
        for message in node.messages():
            runs = self._inside.get((node.key, message.codec_message_id))
            if runs and (instead := self.siblings.choose([node, *runs])) is not node:
                yield from self._read(instead)
                return
            yield node.key, message


class Siblings:
    """The nodes of a tree that stand in for one another, by the key of each."""

    def __init__(self, tree: Tree, chosen: Mapping[str, int]) -> None:
        self._tree = tree
        self._chosen = chosen
        self._groups: dict[object, list[Node]] = {}
        for node in tree.nodes:
            if not tree.is_superseded(node.key):
                self._groups.setdefault(self._group(node), []).append(node)

    def selected(self, node: Node) -> Node:
        """Return the one of a node and its siblings that is to be shown."""
        return self.choose(self._groups.get(self._group(node), [node]))

    def choose(self, nodes: Sequence[Node]) -> Node:
        """Return the node that was chosen last, or else the last."""
        ranked = [node for node in nodes if node.key in self._chosen]
        return max(ranked, key=lambda node: self._chosen[node.key], default=nodes[-1])

    def _group(self, node: Node) -> object:
        if isinstance(node, RunNode):
            known = node.parent or node.started
            return ("run", node.parent) if known else ("run", None, node.key)
        return ("input", node.parent, self._original(node).key)

    def _original(self, node: InputNode) -> InputNode:
        """Return the input that a chain of edits began with."""
        seen = {node.key}
        while node.fork_of and node.fork_of not in seen:
            seen.add(node.fork_of)
            source = self._tree.input(node.fork_of)
            if source is None or source.parent != node.parent:
                break
            node = source
        return node


def _path(tree: Tree, siblings: Siblings) -> list[Node]:
    """Return the nodes that are shown. One whose parent is not there begins a conversation."""
    path: list[Node] = []
    on_path: set[str] = set()
    for node in tree.nodes:
        if tree.is_superseded(node.key) or siblings.selected(node) is not node:
            continue
        parent = tree.owner(node.parent) if node.parent else None
        if parent is None or parent is node or parent.key in on_path:
            path.append(node)
            on_path.add(node.key)
    return path


def _regenerators(tree: Tree) -> dict[tuple[str, str], list[Node]]:
    """Return the runs that replace a run from a message on, by the run and that message.

    Such a run follows the message before. One that replaces a whole run is a sibling of it.
    """
    found: dict[tuple[str, str], list[Node]] = {}
    for node in tree.nodes:
        if not isinstance(node, RunNode) or not node.regenerates or not node.parent:
            continue
        if tree.is_superseded(node.key):
            continue
        replaced = tree.owner(node.parent)
        if not isinstance(replaced, RunNode) or replaced is node:
            continue
        ids = [message.codec_message_id for message in replaced.messages()]
        if node.regenerates in ids[1:] and ids[ids.index(node.regenerates) - 1] == node.parent:
            found.setdefault((replaced.key, node.regenerates), []).append(node)
    return found
