from __future__ import annotations

from collections.abc import Iterator

from perdure.engine.health import StoreFault, StoreReport
from perdure.storage.postgres.database import Database
from perdure.storage.postgres.hints import Hints

_DEAD_ROWS = 100_000


class PostgresHealth:
    """Looks a PostgreSQL schema over: the server's settings, sizes, and what needs vacuuming."""

    hints: Hints

    def __init__(self, database: Database) -> None:
        self._db = database

    async def examine(self) -> StoreReport:
        """Check the settings of the server and the sizes of the tables."""
        ((version, synchronous, fsync, encoding, name, _, _),) = await self._db.read("server")
        ((schema_version,),) = await self._db.read("schema_version")
        sizes = await self._db.read("sizes", schema=self._db.address.schema)
        facts: dict[str, str | int] = {
            "server": self._db.address.shown,
            "database": name,
            "schema": self._db.address.schema,
            "synchronous_commit": synchronous,
            "fsync": fsync,
            "server_encoding": encoding,
            "hints": "come through" if await self.hints.test() else "do not come through",
            **{f"{table}_bytes": size for table, size, _ in sizes},
        }
        return StoreReport(
            f"PostgreSQL {version}", schema_version, facts, [*_faults(sizes, synchronous)]
        )


def _faults(sizes: list[tuple[str, int, int]], synchronous: str) -> Iterator[StoreFault]:
    if synchronous == "off":
        yield StoreFault(
            "synchronous_commit",
            "synchronous_commit is off, so a crash of the server loses what it acknowledged: turn"
            " it on for this database",
        )
    for table, _, dead in sizes:
        if dead > _DEAD_ROWS:
            yield StoreFault(
                "dead_rows",
                f"the table {table} holds {dead} dead rows: check that autovacuum runs, and that no"
                " transaction stays open for hours",
            )
