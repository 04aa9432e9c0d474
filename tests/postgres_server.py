"""A PostgreSQL server of the tests' own: started from an empty folder, and gone with them."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

_PATIENCE_SECONDS: Final = 60.0
_MEMORY: Final = Path("/dev/shm")
_ROOM_BYTES: Final = 2 * 1024**3
_DEBIAN: Final = Path("/usr/lib/postgresql")
_PARENT_DEATH_SIGNAL: Final = 1
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "400",
    "shared_buffers": "64MB",
    "deadlock_timeout": "100ms",
    "dynamic_shared_memory_type": "mmap",  # which goes with the folder
    "fsync": "on",
    "synchronous_commit": "on",
}


LOCKED: Final = "locked"
"""The one role that a server asks for its password."""


def find_binaries(folder: Path = _DEBIAN) -> Path | None:
    """Return the folder with `initdb` and `postgres`: one on the PATH, or Debian's newest."""
    places = [Path(found).resolve().parent for found in [shutil.which("pg_ctl")] if found]
    debian = sorted(folder.glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    for place in [*places, *debian]:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    return None


class PostgresServer:
    """A server on a free port of this machine. It is started in the thread that outlives it."""

    def __init__(self, binaries: Path, folder: Path, user: Mapping[str, Any]) -> None:
        self._binaries = binaries
        self._data = folder / "data"
        self._log = folder / "server.log"
        self._user = user
        self.port = free_port()
        self.sockets = folder
        self._process: subprocess.Popen[bytes] | None = None
        # Without syncing: what is made here is not what a crash is survived with.
        made = [binaries / "initdb", "-D", self._data, "-U", "postgres", "-A", "trust"]
        self._run(*made, "--no-locale", "-E", "UTF8", "--no-sync")
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"host all {LOCKED} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")

    @property
    def url(self) -> str:
        """The database of this server that every test may use."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self, **settings: str) -> None:
        """Start the server and wait until it answers."""
        options = {**_SETTINGS, **settings, "port": str(self.port)}
        options["unix_socket_directories"] = str(self.sockets)
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data, *words],
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - it calls the kernel alone
                **self._user,
            )
        self._wait()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT lets it end what it does, SIGQUIT is `-m immediate`."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def crash(self) -> None:
        """Restart the server as `pg_ctl restart -m immediate` does: it recovers from its log."""
        self.stop(signal.SIGQUIT)
        self.start()

    def said(self) -> str:
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def _wait(self) -> None:
        began = time.monotonic()
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
            except psycopg.OperationalError:
                process = self._process
                ended = process is None or process.poll() is not None
                if ended or time.monotonic() - began > _PATIENCE_SECONDS:
                    raise AssertionError(f"the server did not start:\n{self.said()}") from None
                time.sleep(0.02)
            else:
                return

    def _run(self, *words: Any) -> None:
        done = subprocess.run(words, capture_output=True, text=True, check=False, **self._user)
        assert done.returncode == 0, done.stderr


@contextmanager
def server(binaries: Path, *, in_memory: bool = False) -> Iterator[PostgresServer]:
    """Keep a server for as long as the block; where there is room, its disk is in memory."""
    with own_folder("perdure-pg-", _MEMORY if in_memory else None) as (folder, user):
        it = PostgresServer(binaries, folder, user)
        it.start()
        try:
            yield it
        finally:
            it.stop(signal.SIGQUIT)  # nobody needs what a checkpoint would keep


@contextmanager
def own_folder(prefix: str, wanted: Path | None = None) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield a folder for a server, and as whom to start it; it is deleted at the end.

    It is in the folder that is wanted, if that is there and has room.
    """
    roomy = wanted is not None and wanted.is_dir() and shutil.disk_usage(wanted).free > _ROOM_BYTES
    # Not below pytest's folders, which that user may not enter.
    with tempfile.TemporaryDirectory(
        prefix=prefix, dir=wanted if roomy else None, ignore_cleanup_errors=True
    ) as name:
        user = _unprivileged()
        if user:
            os.chown(name, user["user"], user["group"])
        yield Path(name), user


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _unprivileged() -> Mapping[str, Any]:
    """Return as whom a server runs: it refuses to as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise AssertionError("a server needs a user other than root: there is no 'nobody' here")


def die_with_parent() -> None:
    """Have the kernel end the server when the tests are killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGQUIT)
