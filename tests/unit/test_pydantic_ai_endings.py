from __future__ import annotations

from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from pydantic_ai.exceptions import ModelRetry, UsageLimitExceeded

from perdure.adapters.pydantic_ai.ending import Ending, NoWatch, ToolEndedOddly
from perdure.adapters.pydantic_ai.function_call import FunctionCall
from perdure.adapters.pydantic_ai.mcp_call import McpCall
from perdure.declaration import Verdict
from perdure.journal.record import Failure, Success

VALUE = Ending(Success(b'"x"'), "tool_return")
RETRY = Ending(Success(b'"x"'), "model_retry", "again")


def failed(error: Exception) -> Ending:
    return Ending(Failure("Oops"), error=error)


def caused_by(cause: BaseException) -> ModelRetry:
    """Return what the SDK makes of an error of the protocol."""
    error = ModelRetry(str(cause))
    error.__cause__ = cause
    return error


def call(
    *errors: Exception | None, trusted: bool = False, passed: bool = True, must: bool = True
) -> McpCall:
    """Return an attempt at a server's tool whose calls ended like this."""
    attempt = McpCall(trusted=trusted, harmless=False, must_pass=must)
    if passed:
        attempt.come_to()
    for error in errors:
        attempt.send()
        attempt.end(error)
    return attempt


UNKNOWN_METHOD = caused_by(MCPError(-32601, "no such method"))
BAD_PARAMS = caused_by(MCPError(-32602, "bad arguments"))
CLOSED = caused_by(MCPError(-32000, "Connection closed"))
GROUPED = caused_by(ExceptionGroup("two", [ValueError("x"), MCPError(-32001, "late")]))


@pytest.mark.parametrize(
    ("attempt", "ending", "verdict"),
    [
        (call(None), VALUE, Verdict.APPLIED),
        (call(CLOSED, None), VALUE, Verdict.APPLIED),
        (call(ModelRetry("again")), RETRY, Verdict.UNKNOWN),
        (call(UNKNOWN_METHOD), RETRY, Verdict.REFUSED),
        (call(BAD_PARAMS), RETRY, None),
        (call(BAD_PARAMS, trusted=True), RETRY, Verdict.REFUSED),
        (call(CLOSED), RETRY, None),
        (call(GROUPED), RETRY, None),
        (call(CLOSED), VALUE, Verdict.UNKNOWN),
        (call(OSError("gone")), failed(OSError("gone")), None),
        (call(), failed(OSError("refused")), Verdict.NOT_SENT),
        (call(passed=False), failed(OSError("refused")), Verdict.NOT_SENT),
        (call(passed=False, must=False), failed(OSError("gone")), None),
        (call(passed=False, must=False), RETRY, Verdict.UNKNOWN),
        (call(passed=False, must=False), VALUE, Verdict.APPLIED),
    ],
)
def test_what_a_servers_answers_say_of_the_effect(
    attempt: McpCall, ending: Ending, verdict: Verdict | None
) -> None:
    assert attempt.report(ending).verdict is verdict


def test_a_call_that_a_hook_cut_short_leaves_open_what_was_done() -> None:
    attempt = call()
    attempt.send()
    late = attempt.report(failed(TimeoutError("enough")))
    assert (late.verdict, repr(late.error)) == (None, "TimeoutError('enough')")
    answered = attempt.report(VALUE)
    assert (answered.verdict, answered.why) == (Verdict.UNKNOWN, "it was cut short")


def test_doubt_names_what_the_protocol_said() -> None:
    reported = call(CLOSED).report(RETRY)
    assert repr(reported.error) == repr(CLOSED.__cause__)
    told = call(CLOSED).report(VALUE)
    assert told.why == "MCPError: Connection closed"


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("tool_return", Verdict.APPLIED),
        ("tool_content_result", Verdict.APPLIED),
        ("model_retry", Verdict.REFUSED),
        ("tool_failed", Verdict.REFUSED),
        ("approval_required", Verdict.NOT_SENT),
        ("call_deferred", Verdict.NOT_SENT),
        ("run_cancelled", None),
        ("of a later release", None),
    ],
)
def test_a_result_that_nobody_watched_says_what_its_kind_says(
    kind: str, verdict: Verdict | None
) -> None:
    reported = NoWatch().report(Ending(Success(b"1"), kind, "so it is"))
    assert reported.verdict is verdict
    if verdict is None:
        assert isinstance(reported.error, ToolEndedOddly)
        assert str(reported.error) == f"{kind}: so it is"


def test_a_function_that_was_not_called_sent_nothing() -> None:
    ended: Any = failed(UsageLimitExceeded("enough"))
    reported = FunctionCall().report(ended)
    assert reported.verdict is Verdict.NOT_SENT
    assert isinstance(reported.error, UsageLimitExceeded)
