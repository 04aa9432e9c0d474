from __future__ import annotations

from collections.abc import Collection

from perdure.session import headers
from perdure.session.message import WireMessage


class Requests:
    """What clients have asked of agents, whether it arrived live or stood in history.

    A cancel is one as long as the channel has it: an agent that attaches after it finds it here.
    """

    def __init__(self) -> None:
        self._by_event_id: dict[str, dict[str, WireMessage]] = {}
        # By what they name, since anybody may send any number of them.
        self._of_runs: dict[str, dict[str, WireMessage]] = {}
        self._of_inputs: dict[str, dict[str, WireMessage]] = {}

    def note(self, message: WireMessage) -> None:
        """Take in a message of a client; other messages are passed over."""
        if message.name == headers.AI_CANCEL:
            run_id = message.header(headers.RUN_ID)
            key = run_id or message.header(headers.INPUT_CODEC_MESSAGE_ID)
            cancels = self._of_runs if run_id else self._of_inputs
            cancels.setdefault(key, {})[message.serial] = message
        elif message.name == headers.AI_INPUT and (event_id := message.header(headers.EVENT_ID)):
            self._by_event_id.setdefault(event_id, {})[message.serial] = message

    def trigger(self, event_id: str) -> WireMessage | None:
        """Return the input that an invocation names, or None if it has not been seen."""
        known = self._by_event_id.get(event_id)
        return known[min(known)] if known else None

    def serials(self, event_id: str) -> Collection[str]:
        """Return the serials of all that was sent under an event id, as far as it is seen."""
        return self._by_event_id.get(event_id, {}).keys()

    def parts(self, event_id: str) -> list[WireMessage]:
        """Return all messages of an input, those that its first is of the same sender as."""
        known = self._by_event_id.get(event_id, {})
        parts = [known[serial] for serial in sorted(known)]
        return [part for part in parts if _sender(part) == _sender(parts[0])]

    def cancels(self, *, run_id: str = "", input_id: str = "") -> list[WireMessage]:
        """Return the cancels of a run, in the order of their serials.

        One that names a run is of that run alone. One that knew of none names the input that led
        to it, by its codec message id.
        """
        found = list(self._of_runs.get(run_id, {}).values())
        if input_id:
            found += self._of_inputs.get(input_id, {}).values()
        return sorted(found, key=lambda cancel: cancel.serial)


def _sender(message: WireMessage) -> tuple[str, str]:
    return message.client_id, message.header(headers.CODEC_MESSAGE_ID)
