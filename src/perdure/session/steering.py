from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from perdure.session import headers


class Steering:
    """What is said to a run while it goes on, on its way into the run's outputs.

    `waiting` tells by codec message id what no output says to have taken up. An agent draws it, or
    says itself what it takes up, and what it puts out next says so: it is taken then, unless the
    step of that output fails.
    """

    def __init__(self, waiting: Callable[[], Sequence[str]]) -> None:
        self._waiting = waiting
        self._drawn: list[str] = []
        self._said: set[str] = set()
        # What outputs of this process say, which it may not have read back yet.
        self._taken: set[str] = set()
        self._of_step: set[str] = set()
        self.has_output = False
        """Whether this process has put anything out."""

    def draw(self) -> bool:
        """Take note of all that waits; return whether there is anything."""
        known = self._taken.union(self._drawn)
        news = [key for key in self._waiting() if key not in known]
        self._drawn += news
        return bool(news)

    def take(self, keys: Collection[str]) -> None:
        """Take note of what an agent says that it takes up.

        Also of what an output says to have taken up already: that may be of an attempt which the
        next output replaces.
        """
        known = self._taken.union(self._drawn)
        self._drawn += [key for key in keys if key not in known]
        self._said.update(keys)

    def begin_output(self) -> dict[str, str]:
        """Return the headers with which an output says what it takes up."""
        drawn, self._drawn = self._drawn, []
        self.has_output = True
        self._taken.update(drawn)
        self._of_step.update(drawn)
        listed = msgspec.json.encode(drawn).decode()
        return {headers.STEER_CODEC_MESSAGE_IDS: listed} if drawn else {}

    def end_step(self, *, failed: bool) -> None:
        """Let what a step has taken up wait again, if it has failed.

        What an agent says once is for the next output, and not drawn again.
        """
        if failed:
            self._taken -= self._of_step
            self._drawn += sorted(self._of_step & self._said)
        self._of_step.clear()
