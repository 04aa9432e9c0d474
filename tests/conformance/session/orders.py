"""Orders in which a channel may deliver: messages in any, the deliveries of one in theirs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random

from perdure.session.message import WireMessage
from perdure.session.message_log import MessageLog


def shuffled(deliveries: Sequence[WireMessage], chance: Random) -> list[WireMessage]:
    """Return deliveries in another order, some twice, and some joined to what they come to."""
    waiting: dict[str, list[WireMessage]] = defaultdict(list)
    for delivery in deliveries:
        waiting[delivery.serial].append(delivery)
    waiting = {serial: _conflated(each, chance) for serial, each in waiting.items()}
    found: list[WireMessage] = []
    while waiting:
        serial = chance.choice(list(waiting))
        found.append(waiting[serial].pop(0))
        if chance.random() < 0.1:
            found.append(chance.choice(found))
        if not waiting[serial]:
            del waiting[serial]
    return found


def _conflated(deliveries: list[WireMessage], chance: Random) -> list[WireMessage]:
    """Return the deliveries of one message, the first of them perhaps as one that has it whole."""
    count = chance.randint(1, len(deliveries))
    log = MessageLog()
    for delivery in deliveries[:count]:
        log.receive(delivery)
    whole = log.get(deliveries[0].serial)
    assert whole is not None
    return [whole, *deliveries[count:]]
