from __future__ import annotations

from typing import Final

from perdure.errors import InvalidMcpResponse, InvalidPayload
from perdure.journal.binding import Binding
from perdure.journal.payloads import EventRequest, EventSource
from perdure.journal.payloads.bounds import Bounds
from perdure.journal.payloads.event import check_object

_MIB: Final = 1024 * 1024
MESSAGE: Final = Bounds(4 * _MIB, _MIB, 64, 16_384)
"""How large a message of a server may be."""


async def deliver_events(binding: Binding, parent_sequence: int, events: tuple[str, ...]) -> None:
    """Deliver events in their order, each as an operation of its own.

    The step of an event names the sequence of its request, and not the step of that: requests of
    one namespace whose events are delivered need sequences that differ.

    Durable when it returns: that each was delivered.
    If it raises: `InvalidMcpResponse` for an event that is too large or no object, or as
    `Binding.execute`. Those before it were delivered, and are not again.
    """
    for index, event in enumerate(events):
        _check(event, f"event {index} of the MCP response")
        delivery = EventRequest(
            source=EventSource.MCP,
            parent_sequence=parent_sequence,
            event_index=index,
            event_json=event,
        )
        await binding.event_delivery(f"mcp.event.{parent_sequence}.{index}", 0, delivery)


def _check(event: str, what: str) -> None:
    try:
        MESSAGE.check(event.encode(), what=what)
        check_object(event, what=what)
    except InvalidPayload as error:
        raise InvalidMcpResponse(str(error)) from error
