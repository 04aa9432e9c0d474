from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import Child
from benchmarks.peers.catalog import Place, Variant
from benchmarks.row import Database, Setting

_PATIENCE_SECONDS = 1800.0


@dataclass(frozen=True)
class Stage:
    """One peer and where it may work, as a row needs them."""

    variant: Variant
    setting: Setting

    @contextmanager
    def place(self, name: str) -> Generator[Place]:
        with self.variant.place(self.setting, name) as place:
            yield place

    def floor(self, name: str) -> Database:
        """Return a database for the floor alone."""
        return self.setting.database(f"{name}-floor")

    def fewer(self, operations: int) -> int:
        """Return how many operations this peer is to do of so many."""
        return max(1, operations // self.variant.fewer)

    def command(
        self, place: Place, command: str, *arguments: object, ledger: object = ""
    ) -> tuple[object, ...]:
        """Return what starts a process of this peer."""
        return ("peers.host", self.variant.kind, place.address, ledger, command, *arguments)

    def child(
        self, place: Place, command: str, *arguments: object, ledger: Path | None = None
    ) -> Child:
        return Child(*self.command(place, command, *arguments, ledger=ledger or ""))

    def ask(self, place: Place, command: str, *arguments: object) -> Any:
        """Let a process of this peer do something, and return what it says of it."""
        with self.child(place, command, *arguments) as child:
            return child.hear(_PATIENCE_SECONDS)
