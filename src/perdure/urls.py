from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from perdure.clock import Clock
from perdure.errors import InvalidUrl, MissingExtra, StorageMissing
from perdure.observe import Observer

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage.vault import Vault

_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql://", "postgres://")


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
    path, and `postgresql://user@host:5432/database` a database server's. Raises `InvalidUrl`, or
    `MissingExtra` when the driver is not installed.
    """
    if url.startswith(_POSTGRES):
        return _Server(url)
    return _File(url)


class _File:
    """A SQLite file."""

    def __init__(self, url: str) -> None:
        self._path = _path_of(url)

    async def open(
        self,
        clock: Clock,
        observer: Observer,
        busy_seconds: float,
        probe: Callable[[str], None],
        *,
        create: bool,
        vault: Vault | None = None,
    ) -> Any:
        """Open the file."""
        if not create and not self._path.exists():
            raise StorageMissing(
                f"there is no database at {self._path}; check the URL, or start a run to make one"
            )
        # Imported here, so that a program pays only for the driver that its URL names.
        driver = importlib.import_module("perdure.storage.sqlite")
        return driver.SqliteStorage(
            self._path, clock, observer, busy_seconds=busy_seconds, probe=probe, vault=vault
        )

    async def open_audit(self, clock: Clock, busy_seconds: float) -> Any:
        """Open the audit in the file."""
        driver = importlib.import_module("perdure.storage.sqlite.audit")
        return driver.SqliteAudit(self._path, clock, busy_seconds=busy_seconds)


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
    ) -> Any:
        """Connect to the server."""
        driver = importlib.import_module("perdure.storage.postgres")
        storage = driver.PostgresStorage(
            self._url, clock, observer, busy_seconds=busy_seconds, probe=probe, vault=vault
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
        raise InvalidUrl(f"{url!r} names no file; runs live in one, such as sqlite:///runs.db")
    from pathlib import Path  # a tenth of what importing perdure would cost with it

    return Path(path)
