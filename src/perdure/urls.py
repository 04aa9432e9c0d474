from __future__ import annotations

import importlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from perdure.clock import Clock
from perdure.errors import InvalidUrl, MissingExtra, StorageMissing
from perdure.ids import is_identifier
from perdure.observe import Observer

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage.blobs import BlobStore
    from perdure.storage.vault import Vault

_SQLITE: Final = "sqlite:///"
_MEMORY: Final = "memory:"
_POSTGRES: Final = ("postgresql://", "postgres://")
_PASSWORD: Final = re.compile(r"(?<=://)([^/@:?]*):[^@/]*@|([?&]password=)[^&]*")


class Location(Protocol):
    """Where a store is, as a URL names it."""

    async def open(
        self,
        clock: Clock,
        observer: Observer,
        busy_seconds: float,
        probe: Callable[[str], None],
        *,
        create: bool,
        vault: Vault | None = None,
        blobs: BlobStore | None = None,
    ) -> Any:
        """Open the store, for the running event loop.

        Raises `StorageMissing` without `create` where there is none, or a `StorageError`.
        """
        ...

    async def open_audit(self, clock: Clock, busy_seconds: float) -> Any:
        """Open the audit that is kept there, for the running event loop."""
        ...


def location_of(url: str) -> Location:
    """Return the place that a URL names.

    `sqlite:///runs.db` is a file in the current folder, `sqlite:////var/lib/runs.db` an absolute
    path, and `postgresql://user@host:5432/database` a database server's. For tests there is the
    memory of this process: `memory:` is a place of its own, and `memory:name` the same for all that
    name it, for as long as any of them exists. Raises `InvalidUrl`, or `MissingExtra` when the
    driver is not installed.
    """
    if url.startswith(_MEMORY):
        return _Memory(url)
    if url.startswith(_POSTGRES):
        return _Server(url)
    return _File(url)


def shown(url: str) -> str:
    """Return a URL as it may be printed: without its password."""
    return _PASSWORD.sub(
        lambda found: f"{found[1]}:***@" if found[2] is None else f"{found[2]}***", url
    )


class _Sqlite(ABC):
    """A SQLite database: a file, or the memory of this process."""

    @abstractmethod
    def _place(self) -> Any:
        """Return where the driver finds the database."""

    @abstractmethod
    def _missing(self) -> str | None:
        """Say what to do where there is no database, or return None."""

    async def open(
        self,
        clock: Clock,
        observer: Observer,
        busy_seconds: float,
        probe: Callable[[str], None],
        *,
        create: bool,
        vault: Vault | None = None,
        blobs: BlobStore | None = None,
    ) -> Any:
        """Open the database."""
        if not create and (missing := self._missing()) is not None:
            raise StorageMissing(missing)
        # Imported here, so that a program pays only for the driver that its URL names.
        driver = importlib.import_module("perdure.storage.sqlite")
        return driver.SqliteStorage(
            self._place(),
            clock,
            observer,
            busy_seconds=busy_seconds,
            probe=probe,
            vault=vault,
            blobs=blobs,
        )

    async def open_audit(self, clock: Clock, busy_seconds: float) -> Any:
        """Open the audit in the database."""
        driver = importlib.import_module("perdure.storage.sqlite.audit")
        return driver.SqliteAudit(self._place(), clock, busy_seconds=busy_seconds)


class _File(_Sqlite):
    """A SQLite file."""

    def __init__(self, url: str) -> None:
        self._path = _path_of(url)

    def _place(self) -> Path:
        return self._path

    def _missing(self) -> str | None:
        if self._path.exists():
            return None
        return f"there is no database at {self._path}; check the URL, or start a run to make one"


class _Memory(_Sqlite):
    """A SQLite database in the memory of this process."""

    def __init__(self, url: str) -> None:
        name = url.removeprefix(_MEMORY)
        if name and not is_identifier(name):
            raise InvalidUrl(
                f"{url!r} names no memory: write memory: or memory:name, where a name has 1 to 128"
                " characters of A-Z a-z 0-9 . _ -"
            )
        # Drawn, because two Apps that name none do not share theirs.
        self._name = name or os.urandom(8).hex()
        self._kept: Any = None

    def _place(self) -> Any:
        if self._kept is None:
            driver = importlib.import_module("perdure.storage.sqlite.memory")
            self._kept = driver.Memory(self._name)
        return self._kept

    def _missing(self) -> str | None:
        memory = self._place()
        if not memory.empty:
            return None
        return (
            f"there is nothing in {memory}, and what another process keeps in memory cannot be"
            " seen: use a file, such as sqlite:///runs.db"
        )


class _Server:
    """A schema of a PostgreSQL database."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            address = importlib.import_module("perdure.storage.postgres.address")
        except ModuleNotFoundError as error:
            raise MissingExtra(
                "runs on PostgreSQL need its driver: pip install 'perdure[postgres]'"
            ) from error
        address.Address(url)  # a malformed URL is refused here, and not at the first use

    async def open(
        self,
        clock: Clock,
        observer: Observer,
        busy_seconds: float,
        probe: Callable[[str], None],
        *,
        create: bool,
        vault: Vault | None = None,
        blobs: BlobStore | None = None,
    ) -> Any:
        """Connect to the server."""
        driver = importlib.import_module("perdure.storage.postgres")
        storage = driver.PostgresStorage(
            self._url,
            clock,
            observer,
            busy_seconds=busy_seconds,
            probe=probe,
            vault=vault,
            blobs=blobs,
        )
        try:
            await storage.open(create=create)
        except BaseException:
            await storage.close()
            raise
        return storage

    async def open_audit(self, clock: Clock, busy_seconds: float) -> Any:
        """Connect to the server for the audit alone."""
        driver = importlib.import_module("perdure.storage.postgres.audit")
        audit = driver.PostgresAudit(self._url, clock, busy_seconds=busy_seconds)
        await audit.open()
        return audit


def _path_of(url: str) -> Path:
    if not url.startswith(_SQLITE):
        raise InvalidUrl(
            f"{url!r} is not a URL that perdure can open: it is 'sqlite:///' and a path, such as"
            " sqlite:///runs.db or sqlite:////var/lib/runs.db, or"
            " postgresql://user@host:5432/database"
        )
    path = url.removeprefix(_SQLITE)
    if not path or path.startswith(":memory:") or "?" in path:
        raise InvalidUrl(
            f"{url!r} names no file; runs live in one, such as sqlite:///runs.db, and in tests also"
            " in memory:"
        )
    from pathlib import Path  # a tenth of what importing perdure would cost with it

    return Path(path)
