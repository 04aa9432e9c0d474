"""Every promise of channels, kept by those that are here."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from perdure.channels.memory import MemoryLog
from perdure.channels.stored import StoredChannel
from perdure.testing.channels import ChannelCheck, checks
from tests.channels import opened
from tests.harness import run
from tests.storages import url_of

CHECKS = pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)


@CHECKS
def test_the_channel_in_memory_keeps_what_channels_promise(check: ChannelCheck) -> None:
    async def main() -> None:
        await check(MemoryLog().channel)

    run(main())


@CHECKS
@pytest.mark.parametrize("processes", [1, 2])
def test_a_stored_channel_keeps_what_channels_promise(
    storage: str, tmp_path: Path, check: ChannelCheck, processes: int
) -> None:
    async def main() -> None:
        async with opened(url_of(tmp_path), processes) as every:
            turns = itertools.cycle(every)

            def open_channel(client_id: str) -> StoredChannel:
                return next(turns).channel("s", client_id)

            await check(open_channel)

    run(main())
