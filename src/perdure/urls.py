from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from perdure.clock import Clock
from perdure.errors import InvalidUrl
from perdure.observe import Observer

if TYPE_CHECKING:
    from pathlib import Path

_SQLITE: Final = "sqlite:///"


def path_of(url: str) -> Path:
    """Return the file that a URL names.

    `sqlite:///runs.db` is a file in the current folder, `sqlite:////var/lib/runs.db` an absolute
    path. Raises `InvalidUrl`.
    """
    if not url.startswith(_SQLITE):
        raise InvalidUrl(
            f"{url!r} is not a URL that perdure can open: it is 'sqlite:///' and a path, such as"
            " sqlite:///runs.db or sqlite:////var/lib/runs.db"
        )
    path = url.removeprefix(_SQLITE)
    if not path or path.startswith(":memory:") or "?" in path:
        raise InvalidUrl(f"{url!r} names no file; runs live in one, such as sqlite:///runs.db")
    from pathlib import Path  # a tenth of what importing perdure would cost with it

    return Path(path)


def open_storage(
    url: str,
    clock: Clock,
    observer: Observer,
    busy_seconds: float,
    probe: Callable[[str], None],
) -> Any:
    """Open the storage that a URL names, in the running event loop."""
    # Imported here, so that a program pays only for the driver that its URL names.
    driver = importlib.import_module("perdure.storage.sqlite")
    return driver.SqliteStorage(
        path_of(url), clock, observer, busy_seconds=busy_seconds, probe=probe
    )


def open_audit(url: str, clock: Clock, busy_seconds: float) -> Any:
    """Open the audit in the file that a URL names, in the running event loop."""
    driver = importlib.import_module("perdure.storage.sqlite.audit")
    return driver.SqliteAudit(path_of(url), clock, busy_seconds=busy_seconds)
