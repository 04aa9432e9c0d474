from __future__ import annotations

from typing import Literal

import msgspec


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line that a worker writes about what it does.

    - `ready`: everything is loaded; `refused`: it cannot be, `text` says why
    - `asked`: request `number` goes to the model; `said`: `text` of its answer arrived
    - `called`: the model called a tool; `returned`: the tool answered
    - `paid`: the shop paid `number` cents back for the operation key `text`; `dropped`: it had
      done so before, and paid nothing
    - `doubted`: the receipt `text` was found in flight, and the worker that made the attempt gone
    - `landed`: the shop, asked for the operation key `text`, knows that it paid `number` cents;
      `missed`: it knows of nothing
    - `waiting`: it stands at the point where it is to be killed
    - `finished`: the run ended with the answer `text`; `number` operations were replayed
    - `failed`: it ended in an error, which `text` is
    - `parked`: the run needs attention, `text` says why; the worker waits for a word
    - `killed`: it was killed; `ended`: it ended by itself too early, `text` says how
    """

    what: Literal[
        "ready",
        "refused",
        "asked",
        "said",
        "called",
        "returned",
        "paid",
        "dropped",
        "doubted",
        "landed",
        "missed",
        "waiting",
        "finished",
        "failed",
        "parked",
        "killed",
        "ended",
    ]
    text: str = ""
    number: int = 0


class Moment(msgspec.Struct, frozen=True):
    """A report with the worker that it is about, from 1, and its process id."""

    worker: int
    pid: int
    report: Report
