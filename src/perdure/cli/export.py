from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from perdure.cli.exits import Exit
from perdure.cli.runs import describe
from perdure.cli.screen import Screen
from perdure.cli.target import looked_into
from perdure.cli.words import number_of
from perdure.engine.archive import IMPORTED, decode_archive, encode_archive, export_run, take_in
from perdure.engine.store import RunState
from perdure.errors import CommandError

_STDIN: Final = "-"


async def export(options: argparse.Namespace, screen: Screen) -> Exit:
    """Write all that the store holds of a run to a file or to stdout."""
    async with looked_into(options) as app:
        archive = await export_run(app.store, options.run_id)
    data = encode_archive(archive)
    if options.output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return Exit.OK
    _write(Path(options.output), data)
    counts = {"records": len(archive.records), "receipts": len(archive.receipts)}
    facts = {"run_id": options.run_id, "file": options.output, "bytes": len(data)}
    screen.document({**facts, **counts})
    what = " and ".join(number_of(count, name[:-1]) for name, count in counts.items())
    screen.line(
        f"run {options.run_id} is in {options.output}, with {what}; nothing in it is encrypted"
    )
    return Exit.OK


async def take(options: argparse.Namespace, screen: Screen) -> Exit:
    """Write an exported run to the store, unless that very run is there."""
    archive = decode_archive(_read(options.file))
    async with looked_into(options, create=True) as app:
        imported = await take_in(app.store, archive, go_on=options.go_on)
        row = await app.find(archive.run.run_id)
    screen.document({**describe(row), "imported": imported})
    parked = row.problem is not None and row.problem.code == IMPORTED
    resume = f"`perdure resume {row.run_id}{screen.place}`"
    if not imported:
        what = "is here already, just as it was exported; nothing was done"
    elif parked and archive.run.state is RunState.CANCELLED:
        what = f"is imported: {resume} lets it go on here"
    elif parked:
        what = (
            "is imported, and may have gone on where it came from: to move a run, cancel it there,"
            f" export it after that, and import it with --go-on; {resume} is for one that nothing"
            " there executes any more"
        )
    else:
        what = f"is imported: it is {row.state.value}"
    screen.line(f"run {row.run_id} {what}")
    return Exit.OK


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == _STDIN else Path(file).read_bytes()
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror or error}") from error


def _write(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, all of it or nothing."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error
