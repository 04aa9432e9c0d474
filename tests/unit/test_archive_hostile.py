"""Exported runs that are whole in their digest, with numbers and texts that no store wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Context
from perdure.engine.archive import RunArchive, decode_archive, encode_archive
from perdure.errors import InvalidRecord, UnknownRun
from tests.harness import RUN, app_on, run

pytestmark = pytest.mark.usefixtures("storage")


async def _exported(folder: Path) -> RunArchive:
    app = app_on(folder)

    @app.run(version=1)
    async def work(context: Context) -> float:
        return context.random().random()

    async with app:
        await (await app.start("work", run_id=RUN)).result()
        return decode_archive(await app.export(RUN))


def _changed(archive: RunArchive, **run_changes: Any) -> RunArchive:
    changed = msgspec.structs.replace(archive.run, run_id="come", **run_changes)
    return msgspec.structs.replace(archive, run=changed)


def test_what_there_is_no_room_for_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        archive = await _exported(tmp_path)
        attempt = archive.attempts[0]
        hostile = [
            _changed(archive, generation=2**63),
            msgspec.structs.replace(
                _changed(archive), attempts=[msgspec.structs.replace(attempt, executed=2**63)]
            ),
        ]
        async with app_on(tmp_path).connect() as app:
            for each in hostile:
                with pytest.raises(InvalidRecord):
                    await app.import_run(encode_archive(each))
                with pytest.raises(UnknownRun):
                    await app.find("come")
            await app.import_run(encode_archive(_changed(archive)))

    run(main())


@pytest.mark.parametrize("storage", ["postgres"], indirect=True)
def test_a_server_says_what_it_has_no_room_for(tmp_path: Path) -> None:
    async def main() -> None:
        archive = await _exported(tmp_path)
        async with app_on(tmp_path).connect() as app:
            for changes in ({"function": "work\x00"}, {"version": 2**31}, {"generation": 2**63}):
                with pytest.raises(InvalidRecord, match="no store has written such a run"):
                    await app.import_run(encode_archive(_changed(archive, **changes)))

    run(main())
