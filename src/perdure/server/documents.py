"""What a server says of a session, as JSON documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perdure.session.codec import FoldedMessage
from perdure.session.message import WireMessage
from perdure.session.run_node import RunInfo


def message_document(message: WireMessage) -> dict[str, Any]:
    """Return a delivery as the wire has it; `parse_message` reads it."""
    members = {
        "action": message.action.value,
        "serial": message.serial,
        "version": {"serial": message.version},
        "name": message.name,
        "data": message.data,
        "clientId": message.client_id or None,
        "timestamp": message.timestamp,
    }
    document = {name: value for name, value in members.items() if value is not None}
    if message.transport is not None:
        ai = {"transport": message.transport, **({"codec": message.codec} if message.codec else {})}
        document["extras"] = {"ai": ai, **({"ephemeral": True} if message.ephemeral else {})}
    return document


def folded_document(folded: FoldedMessage) -> dict[str, Any]:
    """Return a message of a conversation."""
    return {"codecMessageId": folded.codec_message_id, "message": folded.message}


def run_document(run: RunInfo) -> dict[str, Any]:
    """Return a run as readers have it."""
    life = run.lifecycle
    fault = life.fault
    error = (
        {"code": fault.code, "statusCode": fault.status, "message": fault.message} if fault else {}
    )
    return {
        "runId": run.run_id,
        "clientId": run.client_id,
        "invocationId": run.invocation_id,
        "status": life.status.value,
        **({"error": error} if fault else {}),
        "steps": [
            {
                "stepId": step.step_id,
                "status": step.status.value,
                "attemptCount": step.attempt_count,
                "stepClientId": step.step_client_id,
            }
            for step in run.steps
        ],
    }


def ui_messages(
    shown: Iterable[tuple[str, FoldedMessage]], runs: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return messages as `useChat` has them: all that a run wrote is one, with its id in `runs`."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for key, folded in shown:
        message = folded.message
        if key not in runs or message.get("role") != "assistant":
            found["said", folded.codec_message_id] = message
        elif ("run", key) not in found:
            found["run", key] = {**message, "id": runs[key], "parts": [*message["parts"]]}
        else:
            found["run", key]["parts"] += message["parts"]
            found["run", key] |= {"metadata": message["metadata"]} if "metadata" in message else {}
    return list(found.values())
