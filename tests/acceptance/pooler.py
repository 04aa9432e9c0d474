"""A pooler in front of a database server, which hands its connections to whoever asks next."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tests.postgres_server import die_with_parent, free_port, own_folder
from tests.services import lacking

_PATIENCE_SECONDS = 60.0
_SETTINGS = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 3
max_client_conn = 300
"""


@contextmanager
def pooling(url: str) -> Iterator[str]:
    """Keep a pooler in front of the server of a URL, and yield the URL that leads through it."""
    # Debian has it where only the superuser looks.
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        lacking("needs pgbouncer: install it, such as Debian's package pgbouncer")
    parts = urlsplit(url)
    port = free_port()
    with own_folder("perdure-pool-") as (folder, user):
        (folder / "users").write_text(f'"{parts.username}" ""\n')
        settings = folder / "settings.ini"
        settings.write_text(
            _SETTINGS.format(host=parts.hostname, port=parts.port, listen=port, folder=folder)
        )
        with (folder / "pooler.log").open("wb") as log:
            process = subprocess.Popen(
                [program, settings],
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - it calls the kernel alone
                **user,
            )
        try:
            pooled = urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}"))
            _wait(pooled, process, folder / "pooler.log")
            yield pooled
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_PATIENCE_SECONDS)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            with closing(psycopg.connect(url, connect_timeout=5, prepare_threshold=None)):
                return
        except psycopg.OperationalError:
            said = log.read_text("utf-8", "replace")
            assert process.poll() is None, said
            assert time.monotonic() < ends, said
            time.sleep(0.02)
