"""Messages of a channel: what is read strictly, and what the deliveries of one come to."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from perdure import errors
from perdure.errors import InvalidSessionMessage, SessionError
from perdure.session.message import Action, WireMessage, parse_message
from perdure.session.message_log import MessageLog


def delivery(action: str, version: str, data: Any = None, **transport: str) -> WireMessage:
    return parse_message(
        {
            "serial": "s1",
            "action": f"message.{action}",
            "version": {"serial": version},
            "name": None if action == "append" else "ai-output",
            "data": data,
            "extras": {
                "ai": {"transport": {"stream": "true", **transport}, "codec": {"kind": "text"}}
            },
        }
    )


def test_a_message_is_read_with_both_tiers_of_headers() -> None:
    message = parse_message(
        b'{"serial":"s1","name":"ai-output","data":{"a":[1,null]},"clientId":"agent","id":"other",'
        b'"timestamp":5,"extras":{"ai":{"transport":{"run-id":"r"},"codec":{"kind":"data-x"}},'
        b'"headers":{"of":"the application"},"ephemeral":true}}'
    )
    assert message == WireMessage(
        serial="s1",
        version="s1",
        action=Action.CREATE,
        name="ai-output",
        data={"a": [1, None]},
        client_id="agent",
        timestamp=5,
        transport={"run-id": "r"},
        codec={"kind": "data-x"},
        ephemeral=True,
    )


@pytest.mark.parametrize(
    "document",
    [
        b"{",
        b"[]",
        b'{"name":"ai-output"}',
        b'{"serial":""}',
        b'{"serial":7}',
        b'{"serial":"s","action":"message.move"}',
        b'{"serial":"s","action":"message.append"}',
        b'{"serial":"s","action":"message.update","version":{}}',
        b'{"serial":"s","name":5}',
        b'{"serial":"s","extras":{"ai":{"transport":{"run-id":5}}}}',
        b'{"serial":"s","extras":{"ai":{"transport":[]}}}',
        b'{"serial":"s","extras":{"ai":{"codec":{"kind":null}}}}',
        b'{"serial":"s","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"serial":"s","serial":"t"}',
    ],
    ids=str,
)
def test_what_is_malformed_is_refused(document: bytes) -> None:
    with pytest.raises(InvalidSessionMessage, match=r"of the channel|has no version"):
        parse_message(document)


@pytest.mark.parametrize("extras", [None, 5, {}, {"ai": 5}, {"headers": {"run-id": "r"}}], ids=str)
def test_a_message_of_somebody_else_is_none_of_a_session(extras: Any) -> None:
    message = parse_message({"serial": "s1", "name": "ai-output", "extras": extras})
    assert message.transport is None
    assert MessageLog().receive(message) is None


def test_live_late_and_from_history_come_to_the_same() -> None:
    deliveries = [
        delivery("create", "s1", "", status="streaming"),
        delivery("append", "s2", "one ", status="streaming"),
        delivery("append", "s3", "two", status="complete"),
    ]
    live, late = MessageLog(), MessageLog()
    for each in deliveries:
        live.receive(each)
        live.receive(each)
    early = late.receive(deliveries[2])
    late.receive(delivery("update", "s2", "one ", status="streaming"))
    assert early is None
    assert live.get("s1") == late.get("s1")
    stored = live.get("s1")
    assert stored is not None
    assert (stored.text, stored.header("status"), stored.name) == (
        "one two",
        "complete",
        "ai-output",
    )


def test_a_gap_that_is_repaired_after_the_end_is_repaired_for_those_who_watch() -> None:
    log = MessageLog()
    log.receive(delivery("create", "s1", ""))
    log.receive(delivery("append", "s2", "aaa"))
    log.receive(delivery("append", "s4", "ccc", status="complete"))
    change = log.receive(delivery("update", "s5", "aaaBBBccc", status="complete"))
    assert change is not None
    assert (change.before.text if change.before else "", change.after.text) == (
        "aaaccc",
        "aaaBBBccc",
    )
    assert log.receive(delivery("update", "s3", "aaaBBB")) is None


def test_a_later_delivery_cannot_move_a_message_to_another_run() -> None:
    log = MessageLog()
    log.receive(delivery("create", "s1", "", **{"run-id": "mine"}))
    log.receive(delivery("append", "s2", "x", **{"run-id": "yours", "step-id": "forged"}))
    found = log.get("s1")
    assert found is not None
    assert found.transport == {"stream": "true", "run-id": "mine"}


def test_every_error_has_the_code_and_status_of_the_wire() -> None:
    family = {
        name: (kind.code, kind.status)
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, SessionError)
    }
    assert family == {
        "SessionError": (50000, 500),
        "SessionBadRequest": (40000, 400),
        "InvalidSessionArgument": (40003, 400),
        "InputConflict": (40003, 409),
        "SessionCancelled": (40033, 400),
        "SessionForbidden": (40160, 401),
        "MissingSerial": (50000, 500),
        "StreamNotRepaired": (104000, 500),
        "SubscriptionFailed": (104001, 500),
        "InvalidSessionMessage": (104001, 500),
        "CancelListenerFailed": (104002, 500),
        "LifecycleNotPublished": (104003, 500),
        "SessionClosed": (104004, 400),
        "SendFailed": (104005, 500),
        "ContinuityLost": (104006, 500),
        "ChannelNotReady": (104007, 400),
        "StreamFailed": (104008, 500),
        "RunNotObserved": (104010, 504),
        "HistoryFailed": (104011, 500),
    }
    again = pickle.loads(pickle.dumps(errors.RunNotObserved("later")))
    assert (str(again), again.status) == ("later", 504)
    assert json.dumps(errors.SessionClosed.code) == "104004"
