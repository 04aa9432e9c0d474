"""Sessions on Ably, through its official client."""

from importlib.util import find_spec

from perdure.errors import MissingExtra

if find_spec("ably") is None:
    raise MissingExtra("sessions on Ably need its client: pip install 'perdure[ably]'")

from perdure.channels.ably.channel import AblyChannel, AblyChannels

__all__ = ["AblyChannel", "AblyChannels"]
