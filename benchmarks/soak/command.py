from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.soak.faults import Server
from benchmarks.soak.run import Plan, soak
from benchmarks.storages import Postgres, Sqlite, Storage


def main(arguments: Sequence[str]) -> int:
    """Soak, say what happened, and return 1 when anything of it was wrong."""
    options = _parser().parse_args(arguments)
    server = Server(options.pg_data, options.pg_ctl) if options.pg_data else None
    storage = Postgres(options.postgres) if options.postgres else Sqlite()
    with tempfile.TemporaryDirectory(prefix="perdure-soak-", dir=options.folder) as name:
        plan = Plan(
            url=options.url or storage.create(Path(name)),
            workers=options.workers,
            runs=options.runs,
            seconds=options.minutes * 60,
            kill_seconds=options.kill_seconds,
            restart_seconds=options.restart_seconds,
            restart=server.restart if server else None,
            seed=options.seed,
        )
        try:
            with _without_news():
                report = soak(plan)
        finally:
            _drop(storage)
    print(*report.lines(), sep="\n")
    return report.code


@contextmanager
def _without_news() -> Generator[None]:
    """Keep from the log that the server is away, which is what this is about."""
    loggers = [logging.getLogger(name) for name in ("psycopg.pool", "perdure")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _drop(storage: Storage) -> None:
    try:
        storage.drop()
    except Exception as error:  # noqa: BLE001 - whatever a driver raises where its server is gone
        said = str(error).partition("\n")[0]
        print(f"the database of the soak is still there: {said}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks soak",
        description="Kill workers and servers at random while runs apply effects, and count.",
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--postgres", metavar="URL", help="a server in which to make a database")
    place.add_argument("--url", help="an empty database: sqlite:///… or postgresql://…")
    parser.add_argument("--folder", type=Path, help="where a SQLite file is made")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--runs", type=int, default=64, help="under way for each worker")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kill-seconds", type=float, default=1.5, help="between two, on average")
    parser.add_argument("--restart-seconds", type=float, default=30.0, help="as above")
    parser.add_argument(
        "--pg-data", type=Path, metavar="DIR", help="the server's: it is restarted at random too"
    )
    parser.add_argument("--pg-ctl", default="pg_ctl", metavar="PROGRAM")
    parser.add_argument("--seed", type=int, default=7)
    return parser
