from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from perdure.session import headers
from perdure.session.attempts import Standing
from perdure.session.codec import Codec, Output
from perdure.session.codec.ui_inputs import TOOL_RESULT, TOOL_RESULT_ERROR
from perdure.session.message import Action, WireMessage
from perdure.session.received import Received, answers
from perdure.session.run_node import RunNode

_RESULTS: Final = {TOOL_RESULT, TOOL_RESULT_ERROR}


class PutOut(msgspec.Struct, frozen=True):
    """What a step that is complete has put out for one message: chunks, as they were read."""

    step_id: str
    message_id: str
    chunks: list[dict[str, Any]]


def put_out(run: RunNode, codec: Codec) -> list[PutOut]:
    """Return what the complete steps of a run have put out, in their order.

    What clients have answered to calls in their place stands behind that, as if it were a step.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    made = [*_outputs(run, codec)]
    for step_id in run.attempts.complete:
        for said, output in made:
            if said.header(headers.STEP_ID) == step_id:
                key = step_id, output.message_id
                found.setdefault(key, []).append(_unnamed(output))
    put = [PutOut(*key, chunks) for key, chunks in found.items()]
    given = [answer for answer in answers(run) if answer.kind in _RESULTS]
    return put + [PutOut(one.event_id, one.codec_message_id, [_result(one)]) for one in given]


def _outputs(run: RunNode, codec: Codec) -> Iterator[tuple[WireMessage, Output]]:
    for message in run.log.entries():
        counts = run.attempts.standing(message) is Standing.COUNTS
        if counts and message.action is not Action.DELETE:
            events = codec.decode(message) or ()
            yield from ((message, event) for event in events if isinstance(event, Output))


def _unnamed(output: Output) -> dict[str, Any]:
    """Return a chunk without the name that its message has on the wire."""
    is_own = output.chunk.get("messageId") == output.message_id
    return {k: v for k, v in output.chunk.items() if not (is_own and k == "messageId")}


def _result(answer: Received) -> dict[str, Any]:
    about = {"toolCallId": answer.payload.get("toolCallId", "")}
    if answer.kind == TOOL_RESULT:
        return {"type": "tool-output-available", **about, "output": answer.payload.get("output")}
    return {"type": "tool-output-error", **about, "errorText": answer.payload.get("message", "")}
