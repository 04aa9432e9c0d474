"""What every channel promises, of the one over Ably's client."""

from __future__ import annotations

import pytest

from perdure.channels.ably import AblyChannels
from perdure.testing.channels import ChannelCheck, checks
from tests.harness import run
from tests.realtime_server import RealtimeServer


@pytest.mark.parametrize("binary", [True, False], ids=["msgpack", "json"])
@pytest.mark.parametrize("check", checks(snapshots=False), ids=lambda check: check.name)
def test_the_channel_keeps_what_every_channel_promises(check: ChannelCheck, binary: bool) -> None:
    async def main() -> None:
        server = RealtimeServer()
        # It may deliver an append whole at any time; the checks look at what others do.
        server.whole_first = False
        async with server.running(), server.client(use_binary_protocol=binary) as client:
            channels = AblyChannels(client)
            await check(lambda client_id: channels.channel("chat:1", client_id))

    run(main())
