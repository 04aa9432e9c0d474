from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from perdure.engine.run_state import RunState

_DIGITS: Final = 32


def turn_id(session: str, event_id: str) -> str:
    """Return the id of the run that answers an input; no other session's input has the same."""
    digest = hashlib.sha256(f"{session}\x00{event_id}".encode()).hexdigest()
    return f"turn-{digest[:_DIGITS]}"


class TurnRow(msgspec.Struct, frozen=True):
    """That a run answers what was said in a session, under an event id."""

    run_id: str
    session: str
    event_id: str


class _Asked(msgspec.Struct):
    session: str
    event_id: str


def turn_of(run_id: str, input_json: bytes) -> TurnRow | None:
    """Return what a run of a turn's function answers where people see it, given its input.

    Of the runs that are given the same to answer it is one: a fork is for whoever made it.
    """
    asked = msgspec.json.decode(input_json, type=_Asked)
    if run_id != turn_id(asked.session, asked.event_id):
        return None
    return TurnRow(run_id, asked.session, asked.event_id)


class EndedTurn(msgspec.Struct, frozen=True):
    """A turn whose run has ended while the session may not have heard of it.

    `problem_code` says why the run failed, if it did and that is known.
    """

    turn: TurnRow
    state: RunState
    generation: int
    problem_code: str | None


class TurnStore(Protocol):
    """The port that keeps which runs are turns of sessions, and which of their ends are told."""

    async def note_turn(self, turn: TurnRow) -> None:
        """Write that a run is a turn, and that its session is to hear how it ends.

        Durable when it returns: the note, fsynced.
        """
        ...

    async def read_turn(self, run_id: str) -> TurnRow | None:
        """Return what a run answers, or None where it is no turn or was erased."""
        ...

    async def list_turns(self, session: str) -> Sequence[TurnRow]:
        """Return the turns of a session whose runs were not erased."""
        ...

    async def ended_turns(self, limit: int, after: str = "") -> Sequence[EndedTurn]:
        """Return turns whose run has ended and whose session has not heard of it, up to a limit.

        They are in the order of the ids of their runs, and behind `after`.
        """
        ...

    async def close_turn(self, run_id: str, generation: int) -> None:
        """Note that a session has heard how a run ended, unless the run goes on since.

        `generation` is that of the claim that has ended.
        Durable when it returns: the note, fsynced.
        """
        ...
