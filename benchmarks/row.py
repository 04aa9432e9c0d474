from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.floor import Entry, Floor
from benchmarks.storages import SQLITE, Sqlite, Storage


@dataclass(frozen=True)
class Target:
    """What a figure is held to: `limit`, for its value or for its ratio to the floor."""

    limit: float
    of: Literal["value", "ratio"] = "value"
    at_least: bool = False

    def met(self, figure: Figure) -> bool:
        reached = figure.value if self.of == "value" else figure.ratio
        assert reached is not None
        return reached >= self.limit if self.at_least else reached <= self.limit


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number with its floor; `value` and `floor` are medians of the samples.

    `ratio` is the median of the ratios of neighbouring samples, so that a machine that changes
    its speed between two runs does not change the ratio. `name` is what the same figure of a
    peer is called too; empty where no peer is measured.
    """

    label: str
    value: float
    unit: str
    floor: float | None = None
    floor_unit: str = ""
    ratio: float | None = None
    targets: Sequence[Target] = ()
    name: str = ""
    samples: Sequence[float] = field(default=(), repr=False)
    floor_samples: Sequence[float] = field(default=(), repr=False)

    @property
    def verdict(self) -> str:
        """`met`, `missed`, or nothing where no target stands."""
        if not self.targets:
            return ""
        return "met" if all(target.met(self) for target in self.targets) else "missed"

    def document(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "verdict": self.verdict}


@dataclass(frozen=True)
class Database:
    """A fresh database, and the folder of whatever works with it."""

    url: str
    folder: Path

    def floor(self, entry: Entry) -> Floor:
        """Open what is measured beside it; once for a database."""
        return Floor.beside(self.url, entry)


@dataclass(frozen=True)
class Setting:
    """Where a row may write, in which storage, and whether it is to hurry."""

    folder: Path
    quick: bool
    storage: Storage = field(default_factory=Sqlite)

    def scale(self, whole: int, quick: int) -> int:
        """Return how much of something to do."""
        return quick if self.quick else whole

    def path(self, name: str) -> Path:
        """Return a folder of this name, made now."""
        path = self.folder / name
        path.mkdir(parents=True)
        return path

    def database(self, name: str) -> Database:
        """Return a database of this name, made now."""
        folder = self.path(name)
        return Database(self.storage.create(folder), folder)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of work that is measured.

    `check` raises `NotDurable` when what was completed ran again after a crash; None where
    `measure` counts that by itself, or where nothing is written. `floor` says what the floor is,
    and `storages` on what the row is measured, one after the other.
    """

    number: str
    work: str
    floor: str
    measure: Callable[[Setting], list[Figure]]
    check: Callable[[Setting], None] | None = None
    storages: Sequence[str] = (SQLITE,)


class NotDurable(Exception):
    """An operation that had completed ran again."""


class Cannot(Exception):
    """What a row measures cannot be had here, or not of a peer; the message says why."""
