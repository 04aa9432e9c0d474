"""A bank in a process of its own: it counts the charges that it accepted, whatever it replied."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SETTLE_SECONDS = 0.4
"""How long after a request was sent the bank may still apply it, and never later."""

_TABLES = """
CREATE TABLE charges (number INTEGER PRIMARY KEY, account TEXT, key TEXT);
CREATE INDEX charges_of ON charges (account, key);
CREATE TABLE voided (account TEXT, key TEXT, sent_before REAL);
CREATE TABLE under_way (account TEXT);
"""


class Bank:
    """Answers one request a connection, and misbehaves as the request tells it to.

    With `honours` it drops a charge whose key it knows, and what it refuses it has not applied and
    never will, however many requests with that key are under way. A fault is `drop` (applied, no
    reply), `lose` (neither), `late` (applied after a while), `hang` (applied, and no reply in
    time), `refuse`, and for a lookup `drop`, `late` (an answer that is old when it arrives) and
    `void` (the key is made useless, so that the answer is final).
    """

    def __init__(self, path: Path) -> None:
        self._books = sqlite3.connect(path, isolation_level=None)
        self._books.execute("PRAGMA journal_mode = WAL")
        self._books.execute("PRAGMA synchronous = OFF")
        self._books.executescript(_TABLES)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            reply = await (self._charge if request["do"] == "charge" else self._look)(request)
            if reply is not None:
                writer.write(json.dumps(reply).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass
        finally:
            writer.close()

    async def _charge(self, request: dict[str, Any]) -> dict[str, Any] | None:
        fault = request["fault"]
        if fault == "lose":
            return None
        if fault == "refuse":
            return self._refuse(request)
        if fault == "late":
            with self._under_way(request["account"]):
                await asyncio.sleep(0.85 * SETTLE_SECONDS)
                return self._apply(request)
        reply = self._apply(request)
        if fault == "hang":
            await asyncio.sleep(30)
        return None if fault == "drop" else reply

    @contextmanager
    def _under_way(self, account: str) -> Iterator[None]:
        # In the books, for those who count when nothing arrives any more.
        number = self._books.execute("INSERT INTO under_way VALUES (?)", (account,)).lastrowid
        yield
        self._books.execute("DELETE FROM under_way WHERE rowid = ?", (number,))

    def _refuse(self, request: dict[str, Any]) -> dict[str, Any]:
        account, key = request["account"], request["key"]
        if request["honours"]:
            if self._charged(account, key):
                return {"charged": account}
            self._void(account, key, time.monotonic())
        return {"refused": "no funds"}

    def _void(self, account: str, key: str, sent_before: float | None) -> None:
        self._books.execute("INSERT INTO voided VALUES (?, ?, ?)", (account, key, sent_before))

    def _apply(self, request: dict[str, Any]) -> dict[str, Any] | None:
        if time.monotonic() > request["sent_at"] + SETTLE_SECONDS:
            return None
        account, key = request["account"], request["key"]
        voided = "SELECT sent_before FROM voided WHERE account = ? AND key = ?"
        for (before,) in self._books.execute(voided, (account, key)):
            if before is None or request["sent_at"] <= before:
                return {"refused": "void"}
        if not (request["honours"] and self._charged(account, key)):
            self._books.execute("INSERT INTO charges (account, key) VALUES (?, ?)", (account, key))
        return {"charged": account}

    async def _look(self, request: dict[str, Any]) -> dict[str, Any] | None:
        account, key, fault = request["account"], request["key"], request["fault"]
        landed = self._charged(account, key)
        if fault == "void" and not landed:
            self._void(account, key, None)
            return {"never": True}
        if fault == "late":
            await asyncio.sleep(SETTLE_SECONDS)
        return None if fault == "drop" else {"charged": account if landed else None}

    def _charged(self, account: str, key: str) -> bool:
        where = "SELECT 1 FROM charges WHERE account = ? AND key = ?"
        return self._books.execute(where, (account, key)).fetchone() is not None


def serve(path: Path, announced: Path) -> None:
    """Keep a bank with its books at `path`, and write its port to a file."""

    async def main() -> None:
        server = await asyncio.start_server(Bank(path).serve, "127.0.0.1", 0, backlog=512)
        made = announced.with_suffix(".new")
        made.write_text(str(server.sockets[0].getsockname()[1]))
        made.rename(announced)
        async with server:
            await server.serve_forever()

    asyncio.run(main())
