from __future__ import annotations

import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import version_of
from benchmarks.on_temporal.server import GROUP, server
from benchmarks.row import Cannot, Setting
from benchmarks.storages import POSTGRES, SQLITE, file_of, size

DEAF_SECONDS = 10
"""For how long a live process is given the chance to go on with what a dead one was within."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A peer in one way of using it, as the parent of its processes sees it.

    `fewer` divides operations where the row would take minutes: figures are those of one
    operation. `cannot` says why a row cannot be measured, and `remarks` what a figure is to be
    read with, by row.
    """

    label: str
    storage: str
    kind: str
    packages: Sequence[str]
    statement: str
    wal: bool = False
    fewer: int = 1
    takes_over: bool = False
    cannot: Mapping[str, str] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)

    @property
    def versions(self) -> str:
        """The packages and their versions; raises `Cannot` where one is missing."""
        found = {name: version_of(name) for name in self.packages}
        missing = [name for name, version in found.items() if version is None]
        if missing:
            raise Cannot(f"{', '.join(missing)} is not installed: {GROUP}")
        return ", ".join(f"{name} {version}" for name, version in found.items())

    @contextmanager
    def place(self, setting: Setting, name: str) -> Generator[Place]:
        """Prepare where the peer keeps what it records."""
        database = setting.database(name)
        if self.kind == "temporal:TemporalPeer":
            with server(database.folder / "server.db") as address:
                yield Place(address, database.folder, f"sqlite:///{database.folder}/server.db")
            return
        if self.wal:
            with closing(sqlite3.connect(file_of(database.url))) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
        yield Place(database.url, database.folder, database.url)


@dataclass(frozen=True)
class Place:
    """Where a peer is found, a folder beside it, and the database that it fills."""

    address: str
    folder: Path
    url: str

    def size(self) -> int:
        return size(self.url)


_STEPS = "the replies alone are recorded, not the requests"
_RESUMED = "nothing goes on with a thread by itself: a program has to call it again"
_DBOS: Mapping[str, Any] = {
    "packages": ("dbos",),
    "kind": "dbos:DbosPeer",
    "statement": "import dbos",
    "remarks": {
        "P6": "from the start of its code on",
        "P7": "from the start of a new process: no live one goes on with it",
        "P8": _STEPS,
    },
}
_NO_WORKER = {"P7": _RESUMED, "P10 idle": "there is no worker: a program calls it"}
_TASKS: Mapping[str, Any] = {
    "kind": "langgraph:TaskPeer",
    "cannot": _NO_WORKER,
    "remarks": {"P8": _STEPS},
}
_GRAPH: Mapping[str, Any] = {
    "kind": "langgraph:GraphPeer",
    "cannot": {**_NO_WORKER, "P6": "it goes on from its last state: nothing is repeated"},
    "remarks": {"P8": "the whole state is stored at each step"},
}
_ON_SQLITE: Mapping[str, Any] = {
    "storage": SQLITE,
    "packages": ("langgraph", "langgraph-checkpoint-sqlite"),
    "statement": "import langgraph.func, langgraph.graph, langgraph.checkpoint.sqlite.aio",
}
_ON_POSTGRES: Mapping[str, Any] = {
    "storage": POSTGRES,
    "packages": ("langgraph", "langgraph-checkpoint-postgres"),
    "statement": "import langgraph.func, langgraph.graph, langgraph.checkpoint.postgres.aio",
}

VARIANTS: Sequence[Variant] = (
    Variant(label="DBOS", storage=SQLITE, **_DBOS),
    Variant(label="DBOS, WAL", storage=SQLITE, wal=True, **_DBOS),
    Variant(label="LangGraph, tasks", **_TASKS, **_ON_SQLITE),
    Variant(label="LangGraph, graph", **_GRAPH, **_ON_SQLITE),
    Variant(
        label="Temporal",
        storage=SQLITE,
        kind="temporal:TemporalPeer",
        packages=("temporalio",),
        statement="import temporalio.client, temporalio.worker",
        fewer=5,
        takes_over=True,
        remarks={
            "P6": "a query to a worker that never saw the run",
            "P7": "with a heartbeat timeout of 10 s; without one, its start-to-close timeout",
            "P8": "requests recorded",
        },
    ),
    Variant(label="DBOS", storage=POSTGRES, **_DBOS),
    Variant(label="LangGraph, tasks", **_TASKS, **_ON_POSTGRES),
    Variant(label="LangGraph, graph", **_GRAPH, **_ON_POSTGRES),
)
LABELS = tuple(dict.fromkeys(variant.label for variant in VARIANTS))
