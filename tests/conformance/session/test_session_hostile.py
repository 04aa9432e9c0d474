"""No message, whatever it says, keeps a reader from reading on."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

import pytest

from perdure.session.codec import TextCodec, UiMessageCodec
from perdure.session.message import parse_message
from perdure.session.prompt import prompt
from perdure.session.reader import SessionReader
from perdure.testing.session_oracle import view_document
from tests.conformance.session.conversation import Conversation

PART = {"type": "tool-x", "toolCallId": "call", "approval": {}}
SEED = {"codecMessageId": "u0", "message": {"id": "i", "role": "assistant", "parts": [PART]}}
DATA = [None, 5, "x", [], {}, {"output": 1}, {"errorText": []}, {"forkSeed": {"messages": [SEED]}}]
VALUES = ["", "run-0", "run-1", "u0", "run-0-m1", "true", "complete", "user", '["u0"]', "{"]
NAMES = ["ai-input", "ai-output", "ai-run-start", "ai-step-end", "ai-run-end", "ai-cancel", None]
ACTIONS = ["message.create", "message.append", "message.update", "message.delete"]
KINDS = ["text", "tool-input", "tool-result", "user-message", "tool-approval-response", "data-"]
KINDS += ["tool-input-error", "tool-output-available", "text-start", "tool-input-delta", "finish"]


def forged(line: dict[str, Any], chance: Random) -> dict[str, Any]:
    """Return a message with one to three things of it as somebody else would have them."""
    found = copy.deepcopy(line)
    ai = found["extras"]["ai"]
    for _ in range(chance.randint(1, 3)):
        tier = ai.setdefault(chance.choice(["transport", "codec"]), {})
        match chance.randrange(6):
            case 0:
                found["data"] = chance.choice(DATA)
            case 1 if tier:
                del tier[chance.choice(list(tier))]
            case 2 if tier:
                tier[chance.choice(list(tier))] = chance.choice(VALUES)
            case 3:
                ai.setdefault("codec", {})["kind"] = chance.choice(KINDS)
            case 4:
                found["action"] = chance.choice(ACTIONS)
            case _:
                found["name"] = chance.choice(NAMES)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_a_reader_reads_on(seed: int) -> None:
    chance = Random(seed)
    lines = [forged(each, chance) if chance.random() < 0.3 else each for each in lines_of(seed)]
    if seed % 2:
        chance.shuffle(lines)
    for codec in (UiMessageCodec(), TextCodec()):
        reader = SessionReader(codec)
        for number, line in enumerate(lines):
            message = parse_message(line)
            if chance.random() < 0.8:
                reader.receive(message)
            else:
                reader.load([message], more=True)
            if number % 7 == 0:
                reader.reveal()
                json.dumps(view_document(reader.view))
                prompt(reader.tree, "run-1-m1", run_id=chance.choice(["run-1", "run-2", ""]))
        reader.receive(parse_message(honest()))
        assert reader.tree.input("honest") is not None


def lines_of(seed: int) -> list[dict[str, Any]]:
    return Conversation(seed).lines


def honest() -> dict[str, Any]:
    transport = {"codec-message-id": "honest", "role": "user", "stream": "false"}
    codec = {"kind": "user-message", "partType": "text"}
    extras = {"ai": {"transport": transport, "codec": codec}}
    return {"serial": "99999999", "name": "ai-input", "data": "still here", "extras": extras}
