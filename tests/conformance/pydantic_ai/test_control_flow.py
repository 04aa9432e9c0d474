"""T40: what steers the agent, and arguments that do not fit, use up no try of an operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry, Tool
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
from pydantic_ai.messages import ModelRequest

from perdure.adapters.pydantic_ai import Durable, ToolConfig
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.errors import RunParked
from perdure.retry import RetryPolicy
from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.conformance.pydantic_ai.agents import states
from tests.conformance.pydantic_ai.journal import MemoryJournal

EAGER = RetryPolicy(attempts=5, initial_seconds=0, retry_on=Exception)
READS = ToolConfig(retry=EAGER, read_only=True)
REPEATS = ToolConfig(
    retry=EAGER, effect=EffectPolicy(support=SideEffectSupport.IDEMPOTENT, target="shop")
)


class Fussy:
    """A tool that raises, and counts how often it was called."""

    def __init__(self, raised: Callable[[], Any], config: ToolConfig, count: object = 1) -> None:
        self.calls = 0
        self._raised = raised
        self.agent: Agent[None, Any] = Agent(
            ScriptedModel([Reply(calls=[Call("order", {"count": count})]), "I gave up."]),
            name="fussy",
            output_type=[str, DeferredToolRequests],
            tools=[Tool(self.order, metadata={"perdure": config})],
            capabilities=[Durable(retry=EAGER, wait_for_answers=False)],
        )

    def order(self, count: int) -> str:
        self.calls += 1
        error = self._raised()
        raise error


def invalid() -> Exception:
    try:
        TypeAdapter(int).validate_python("x")
    except ValueError as error:
        return error
    raise AssertionError


def told(messages: list[Any]) -> list[str]:
    """Return what the model was told of its calls."""
    parts = [p for m in messages if isinstance(m, ModelRequest) for p in m.parts[:1]]
    return [str(part.content) for part in parts[1:]]


@pytest.mark.parametrize("config", [READS, REPEATS], ids=["reads", "repeats"])
@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (lambda: ModelRetry("Ask nicely."), "Ask nicely."),
        (lambda: ToolFailed("It is closed."), "It is closed."),
        (ApprovalRequired, None),
        (CallDeferred, None),
        (invalid, "int_parsing"),
    ],
    ids=["retry", "failed", "approval", "deferred", "validation"],
)
def test_what_a_tool_raises_to_steer_the_agent_is_not_tried_again(
    raised: Callable[[], Any], said: str | None, config: ToolConfig
) -> None:
    fussy = Fussy(raised, config)
    journal = MemoryJournal()
    if raised is invalid and config is REPEATS:
        # A bug or a refusal: nobody knows what was done before it, and a repeat meets it again.
        with pytest.raises(RunParked, match="1 validation error"):
            journal.run(lambda context: fussy.agent.run("Order."))
        assert states(journal) == [("shop", "ambiguous")]
    else:
        results = [journal.run(lambda context: fussy.agent.run("Order.")) for _ in range(2)]
        for result in results:
            if said is None:
                assert isinstance(result.output, DeferredToolRequests)
            else:
                assert result.output == "I gave up."
                (heard,) = told(result.all_messages())
                assert said in heard
    assert fussy.calls == 1
    assert not [step for step, _ in journal.steps() if step.endswith(".retry")]
    assert not journal.timers


def test_arguments_that_do_not_fit_reach_no_tool_and_the_model_hears_it() -> None:
    fussy = Fussy(invalid, READS, count="x")
    journal = MemoryJournal()
    for _ in range(2):
        result = journal.run(lambda context: fussy.agent.run("Order."))
        (heard,) = told(result.all_messages())
        assert "int_parsing" in heard
    assert fussy.calls == 0
    assert journal.steps() == [("model.request", 1), ("model.request", 2)]
