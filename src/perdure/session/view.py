from __future__ import annotations

from collections.abc import Sequence

from perdure.errors import InvalidSessionArgument
from perdure.session import headers
from perdure.session.branch import Shown, Siblings, visible_branch
from perdure.session.codec import FoldedMessage
from perdure.session.message import WireMessage
from perdure.session.nodes import InputNode, RunInfo, RunNode
from perdure.session.tree import Tree


class View:
    """What one reader sees of a conversation: one branch of its tree, from a message on.

    A new view shows all that the tree holds. One with a `limit` shows its last messages, and more
    with each `reveal`; what arrives later is shown besides.
    """

    def __init__(self, tree: Tree, *, limit: int | None = None) -> None:
        self._tree = tree
        self._chosen: dict[str, int] = {}
        self._hidden_before: str | None = None
        if limit is not None:
            self._hide(_positive(limit))

    @property
    def messages(self) -> list[FoldedMessage]:
        """The messages that are shown, oldest first."""
        every = self._all()
        return every[self._first_shown(every) :]

    @property
    def runs(self) -> list[RunInfo]:
        """The runs on the branch that is shown, oldest first; those without messages too."""
        branch = self._branch()
        hidden = self._first_shown(self._all())
        found: list[RunInfo] = []
        for shown in branch:
            if hidden > 0:
                hidden -= len(shown.messages)
                if hidden >= 0:
                    continue
            if isinstance(shown.node, RunNode):
                found.append(shown.node.info)
        return found

    @property
    def has_hidden(self) -> bool:
        """Whether the tree holds older messages of the branch than those that are shown."""
        return self._first_shown(self._all()) > 0

    def reveal(self, limit: int = 10) -> int:
        """Show up to `limit` messages more, and return how many. Fewer: the tree has no more."""
        wanted = _positive(limit)
        every = self._all()
        first = self._first_shown(every)
        start = max(first - wanted, 0)
        self._hidden_before = every[start].codec_message_id if start else None
        return first - start

    def select(self, key: str) -> None:
        """Show the run or input with this key wherever it has siblings, until another is chosen.

        It may be one that the tree does not hold yet, such as an edit that is about to be sent.
        """
        self._chosen[key] = max(self._chosen.values(), default=0) + 1

    def receive(self, delivery: WireMessage) -> bool:
        """Take in a live delivery; return whether it changed the tree.

        An edit by somebody else does not take the branch away that is being looked at: what was
        shown in its place stays, until this reader chooses. A reader who comes later sees the edit.
        """
        shown = self._shown_instead_of(delivery)
        changed = self._tree.apply(delivery) is not None
        edit = delivery.header(headers.CODEC_MESSAGE_ID)
        if shown and self._tree.input(edit) is not None and edit not in self._chosen:
            self.select(shown)
        return changed

    def _shown_instead_of(self, delivery: WireMessage) -> str | None:
        """Return the input that is shown where an edit is about to arrive, unless it is known."""
        source = self._tree.input(delivery.header(headers.FORK_OF))
        is_edit = delivery.name == headers.AI_INPUT and not delivery.header(headers.RUN_ID)
        if not is_edit or source is None:
            return None
        if self._tree.input(delivery.header(headers.CODEC_MESSAGE_ID)) is not None:
            return None
        selected = Siblings(self._tree, self._chosen).selected(source)
        on_branch = any(shown.node is selected for shown in self._branch())
        return selected.key if on_branch and isinstance(selected, InputNode) else None

    def _hide(self, limit: int) -> None:
        every = self._all()
        if len(every) > limit:
            self._hidden_before = every[-limit].codec_message_id

    def _branch(self) -> list[Shown]:
        return visible_branch(self._tree, self._chosen)

    def _all(self) -> list[FoldedMessage]:
        return [message for shown in self._branch() for message in shown.messages]

    def _first_shown(self, every: Sequence[FoldedMessage]) -> int:
        """Return the index of the first message that is shown; all are if its branch is left."""
        for index, message in enumerate(every):
            if message.codec_message_id == self._hidden_before:
                return index
        return 0


def _positive(limit: int) -> int:
    if isinstance(limit, bool) or limit < 1:
        raise InvalidSessionArgument(f"a view shows a positive number of messages, not {limit!r}")
    return limit
