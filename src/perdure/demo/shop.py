from __future__ import annotations

import os
import re
import sqlite3
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from perdure.demo.story import ORDER, PAID_CENTS

_QUERY: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


class Shop:
    """The world outside of the run, in a database of its own: effects are counted here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        _, *parts = _QUERY.split(files("perdure.demo").joinpath("shop.sql").read_text("utf-8"))
        self._sql = dict(zip(parts[::2], parts[1::2], strict=True))

    def create(self) -> None:
        """Open the shop with one order that was paid for."""
        with self._writing() as database:
            for name in ("create_orders", "create_refunds", "create_visits"):
                database.execute(self._sql[name])
            order = {"order_id": ORDER, "item": "desk lamp", "paid_cents": PAID_CENTS}
            database.execute(self._sql["insert_order"], order)

    def visit(self, kind: str, name: str, pid: int | None = None) -> None:
        """Count that a process, by default this one, asked the model, a tool or the clock.

        Durable when it returns: the count.
        """
        with self._writing() as database:
            self._note(database, kind, name, pid)

    def find(self, order_id: str) -> tuple[str, int] | None:
        """Return the item of an order and what was paid for it, in cents."""
        with self._writing() as database:
            self._note(database, "tool", "look_up_order")
            row = database.execute(self._sql["find_order"], {"order_id": order_id}).fetchone()
        return None if row is None else (row[0], row[1])

    def refund(self, order_id: str, cents: int, operation_key: str | None, *, once: bool) -> bool:
        """Pay money back, as often as this is called; return whether it was paid now.

        `once` makes the shop drop a refund whose operation key it has seen. A shop that takes no
        keys gets None.

        Durable when it returns: the refund.
        """
        refund: dict[str, Any] = {"order_id": order_id, "cents": cents, "pid": os.getpid()}
        refund |= {"operation_key": operation_key, "once": once}
        with self._writing() as database:
            self._note(database, "tool", "refund_order")
            return database.execute(self._sql["insert_refund"], refund).rowcount > 0

    def find_refund(self, operation_key: str) -> tuple[str, int] | None:
        """Return for which order money went back under an operation key, and how many cents."""
        with self._writing() as database:
            self._note(database, "lookup", "find_refund")
            key = {"operation_key": operation_key}
            row = database.execute(self._sql["find_refund"], key).fetchone()
        return None if row is None else (row[0], row[1])

    def book(self) -> Sequence[tuple[str, int]]:
        """Return the order and the cents of each refund, as a person finds them in the book."""
        with self._writing() as database:
            return database.execute(self._sql["list_refunds"]).fetchall()

    def refunds(self, pid: int) -> tuple[int, int]:
        """Return how often a process paid money back, and how many cents in all."""
        with self._writing() as database:
            row = database.execute(self._sql["count_refunds"], {"pid": pid}).fetchone()
        return row[0], row[1]

    def visits(self, pid: int) -> Counter[tuple[str, str]]:
        """Return how often a process came, by kind and name."""
        with self._writing() as database:
            rows = database.execute(self._sql["count_visits"], {"pid": pid}).fetchall()
        return Counter({(kind, name): count for kind, name, count in rows})

    def _note(
        self, database: sqlite3.Connection, kind: str, name: str, pid: int | None = None
    ) -> None:
        visit: dict[str, Any] = {"kind": kind, "name": name, "pid": pid or os.getpid()}
        database.execute(self._sql["insert_visit"], visit)

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=30)) as database, database:
            yield database
