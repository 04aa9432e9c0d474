"""Folds a recorded session: `python -m perdure.testing.session_oracle FILE [--join N] [--page N]`.

FILE has one message of the channel a line, as a subscriber from the start was given them: a new
serial is a create, a known one an append, where `action` does not say so. The reader joins after N
messages (after the last one, unless told), reads history in pages of N and then the rest as it
comes. What it then sees is printed as `{"messages": [{"codecMessageId", "message"}], "runs":
[{"runId", "clientId", "invocationId", "status", "error"?, "steps"}]}`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from perdure.errors import InvalidSessionMessage
from perdure.session.attempts import Step
from perdure.session.codec import Codec, UiMessageCodec
from perdure.session.message import Action, WireMessage, parse_message
from perdure.session.message_log import MessageLog
from perdure.session.reader import SessionReader
from perdure.session.run_node import RunInfo
from perdure.session.view import View


class Recording:
    """What was delivered on a channel, to be read again from any point."""

    def __init__(self, deliveries: Iterable[WireMessage]) -> None:
        self.deliveries = list(deliveries)

    @classmethod
    def read(cls, text: str) -> Recording:
        """Return the recording in lines of JSON. Raises `InvalidSessionMessage` with the line."""
        known: dict[str, int] = {}
        deliveries: list[WireMessage] = []
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip() or line.startswith("#"):
                continue
            try:
                deliveries.append(parse_message(_completed(_read_line(line), known)))
            except (msgspec.DecodeError, InvalidSessionMessage) as error:
                raise InvalidSessionMessage(f"line {number}: {error}") from error
        return cls(deliveries)

    def history(self, joined: int, page: int) -> Iterator[list[WireMessage]]:
        """Yield what was there at a point in pages, the newest first and each newest first."""
        log = MessageLog()
        stored = [delivery for delivery in self.deliveries[:joined] if not delivery.ephemeral]
        for delivery in stored:
            log.receive(delivery)
        serials = sorted({delivery.serial for delivery in stored}, reverse=True)
        found = [message for serial in serials if (message := log.get(serial))]
        for start in range(0, len(found), page):
            yield found[start : start + page]

    def live(self, joined: int) -> Iterator[WireMessage]:
        """Yield what came after a point: the first append to a message from before has it whole."""
        log, seen = MessageLog(), set[str]()
        for index, delivery in enumerate(self.deliveries):
            log.receive(delivery)
            if index < joined:
                continue
            whole = log.get(delivery.serial)
            late = delivery.action is Action.APPEND and delivery.serial not in seen
            seen.add(delivery.serial)
            yield whole if late and whole else delivery


def read_at(recording: Recording, codec: Codec, *, joined: int | None, page: int) -> View:
    """Return what somebody sees who joined at a point and read history before anything else."""
    at = len(recording.deliveries) if joined is None else joined
    reader = SessionReader(codec)
    for messages in recording.history(at, page):
        reader.load(messages, more=True)
        reader.reveal()
    reader.load([], more=False)
    while reader.view.withheld:
        reader.reveal()
    for delivery in recording.live(at):
        reader.receive(delivery)
    return reader.view


def view_document(view: View) -> dict[str, Any]:
    """Return what is shown as JSON."""
    return {
        "messages": [
            {"codecMessageId": folded.codec_message_id, "message": folded.message}
            for folded in view.messages
        ],
        "runs": [_run(run) for run in view.runs],
    }


def main(arguments: list[str] | None = None) -> None:
    """Print the view of a recording."""
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.session_oracle")
    parser.add_argument("file", type=Path, help="the recorded session, a message a line")
    parser.add_argument("--join", type=int, help="join after so many messages; after all of them")
    parser.add_argument("--page", type=int, default=100, help="messages in a page of history; 100")
    options = parser.parse_args(arguments)
    if options.page < 1 or (options.join or 0) < 0:
        parser.error("--page is 1 or more, --join 0 or more")
    try:
        recording = Recording.read(options.file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, InvalidSessionMessage) as error:
        parser.error(f"{options.file}: {error}")
    view = read_at(recording, UiMessageCodec(), joined=options.join, page=options.page)
    print(msgspec.json.encode(view_document(view)).decode())


_read_line: Final = msgspec.json.Decoder(dict[str, Any]).decode


def _completed(document: dict[str, Any], known: dict[str, int]) -> dict[str, Any]:
    """Return a line with the action and the version that it may leave out."""
    serial = str(document.get("serial", ""))
    count = known[serial] = known.get(serial, -1) + 1
    document.setdefault("action", Action.APPEND if count else Action.CREATE)
    version = cast("dict[str, Any]", document.get("version") or {})
    if count and not version.get("serial"):
        document["version"] = {"serial": f"{serial}~{count:06}"}
    return document


def _run(run: RunInfo) -> dict[str, Any]:
    life = run.lifecycle
    fault = life.fault
    said = fault and {"code": fault.code, "statusCode": fault.status, "message": fault.message}
    return {
        "runId": run.run_id,
        "clientId": run.client_id,
        "invocationId": run.invocation_id,
        "status": life.status,
        **({"error": said} if said else {}),
        "steps": [_step(step) for step in run.steps],
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "stepId": step.step_id,
        "status": step.status,
        "attemptCount": step.attempt_count,
        "stepClientId": step.step_client_id,
    }


if __name__ == "__main__":
    main()
