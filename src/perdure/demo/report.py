from __future__ import annotations

from typing import Literal

import msgspec


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line that a worker writes about what it does.

    - `ready`: everything is loaded; `refused`: it cannot be, `text` says why
    - `asked`: request `number` goes to the model; `said`: `text` of its answer arrived
    - `called`: the model called a tool; `returned`: the tool answered
    - `waiting`: it stands at the point where it is to be killed
    - `finished`: the run ended with the answer `text`; `number` operations were replayed
    - `failed`: it ended in an error, which `text` is
    - `killed`: it was killed; `ended`: it ended by itself too early, `text` says how
    """

    what: Literal[
        "ready",
        "refused",
        "asked",
        "said",
        "called",
        "returned",
        "waiting",
        "finished",
        "failed",
        "killed",
        "ended",
    ]
    text: str = ""
    number: int = 0


class Moment(msgspec.Struct, frozen=True):
    """A report with the worker that it is about: 1 or 2, and its process id."""

    worker: int
    pid: int
    report: Report
