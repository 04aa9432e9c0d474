from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from perdure.clock import Clock
from perdure.engine.dispatch import Dispatcher
from perdure.errors import InvalidOptions, InvalidUrl, MissingExtra, StorageMissing
from perdure.ids import is_identifier
from perdure.observe import Observer

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage.blobs import BlobStore
    from perdure.storage.vault import Vault

_SQLITE: Final = "sqlite:///"
_MEMORY: Final = "memory:"
_POSTGRES: Final = ("postgresql://", "postgres://")
_TEMPORAL: Final = "temporal://"
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


class Dispatching(Protocol):
    """Makes what has the runs of a store executed, for the running event loop.

    Takes a function that connects to its server, or None, and for how long a worker may be silent.
    """

    def __call__(self, connect: Any, lease_seconds: float) -> Dispatcher:
        """Return the dispatcher."""
        ...


def place_of(url: str, store: str | None) -> tuple[str, Dispatching | None]:
    """Return the URL of the store where runs live, and what has them executed.

    That is None where workers look into the store by themselves. A URL of Temporal names its store
    itself, as `&store=…`, or leaves that to `store`. Raises `InvalidUrl`, or `MissingExtra` when
    the client of Temporal is not installed.
    """
    if not url.startswith(_TEMPORAL):
        if url.startswith("temporal"):
            raise InvalidUrl(
                f"{shown(url)!r} is not a URL of Temporal, such as"
                " temporal://host:7233/namespace?task_queue=agents"
            )
        if store is not None:
            raise InvalidUrl(
                f"store={shown(store)!r} is for runs on Temporal, as in App('temporal://host:7233/"
                f"namespace?task_queue=agents', store=…); {shown(url)!r} is a store by itself"
            )
        return url, None
    address = importlib.import_module("perdure.runtimes.temporal.address").address_of(url)
    if (store is None) == (address.store is None):
        raise InvalidUrl(
            "runs on Temporal have one store, for what they record and did to the world: pass"
            " store='postgresql://…' or store='sqlite:///…' beside the URL, or &store=… in it"
        )
    if importlib.util.find_spec("temporalio") is None:
        raise MissingExtra("runs on Temporal need its client: pip install 'perdure[temporal]'")

    def dispatching(connect: Any, lease_seconds: float) -> Dispatcher:
        edge = importlib.import_module("perdure.runtimes.temporal.dispatcher")
        dispatcher: Dispatcher = edge.TemporalDispatcher(address, connect, lease_seconds)
        return dispatcher

    return store or address.store, dispatching


def check_connect(connect: object, *, dispatched: bool) -> None:
    """Raise `InvalidOptions` for what connects to no server, or is given where there is none."""
    if connect is None:
        return
    if not dispatched:
        raise InvalidOptions(
            "temporal= is for runs on Temporal: the URL is temporal://host:7233/namespace then, and"
            " store= that of the store"
        )
    if not inspect.iscoroutinefunction(connect):
        raise InvalidOptions(
            f"temporal= is an async function that returns a connected Client, not {connect!r}"
        )


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
    scheme, found, _ = url.partition("://")
    if found and "+" in scheme:
        raise InvalidUrl(
            f"{shown(url)!r} names a driver, which perdure chooses itself: leave out"
            f" {scheme[scheme.index('+') :]!r}"
        )
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
