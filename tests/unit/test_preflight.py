"""Whatever a run will need is missed before it does anything, all of it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import Context, RunNeedsAttention
from perdure.errors import MissingHandler, UndeclaredOrigins, UnmetNeeds
from perdure.journal import Binding, Handlers, Invocation, OperationKind, Outcome, Success
from perdure.preflight import NeededTool, NeededToolset, Needs, Origin, Preflight
from perdure.runtimes.embedded import EmbeddedRuntime
from tests.harness import RUN, app_on, once, operations, run

Kind = OperationKind
RUNTIME: Any = None  # nothing is executed


async def worker(invocation: Invocation) -> Outcome:
    return Success(b"null")


def binding(*kinds: OperationKind) -> Binding:
    return Binding(run_id=RUN, runtime=RUNTIME, handler_ids={kind: f"my-{kind}" for kind in kinds})


def handlers_of(*kinds: OperationKind) -> Handlers:
    handlers = Handlers()
    for kind in kinds:
        handlers.register(kind, f"my-{kind}", worker)
    return handlers


@pytest.mark.parametrize(
    ("needs", "kinds"),
    [
        (Needs(), [Kind.MODEL_REQUEST]),
        (Needs(streams=True), [Kind.MODEL_STREAM]),
        (Needs(model_requests=False, streams=True), []),
        (Needs(retries=True), [Kind.MODEL_REQUEST, Kind.RETRY_DELAY]),
        (Needs(tools=(NeededTool("add"),)), [Kind.MODEL_REQUEST, Kind.TOOL_CALL]),
        (Needs(tools=(NeededTool("add", Origin.MCP),)), [Kind.MODEL_REQUEST, Kind.MCP_REQUEST]),
        (Needs(tools=(NeededTool("add", Origin.WORKFLOW),)), [Kind.MODEL_REQUEST]),
        (Needs(toolsets=(NeededToolset("late", ()),)), [Kind.MODEL_REQUEST]),
        (
            Needs(toolsets=(NeededToolset("late", (Origin.MCP, Origin.WORKFLOW)),)),
            [Kind.MODEL_REQUEST, Kind.MCP_REQUEST],
        ),
        (
            Needs(model_requests=False, event_deliveries=True, approvals=True),
            [Kind.EVENT_DELIVERY, Kind.APPROVAL_RESUME],
        ),
    ],
)
def test_what_is_needed_and_nothing_else_has_to_be_there(
    needs: Needs, kinds: list[OperationKind]
) -> None:
    Preflight(binding(*kinds), handlers_of(*kinds)).check(needs)
    for left_out in kinds:
        others = [kind for kind in kinds if kind is not left_out]
        for preflight, mended in [
            (Preflight(binding(*others), handlers_of(*kinds)), f"a handler id for {left_out} to"),
            (Preflight(binding(*kinds), handlers_of(*others)), f"@handlers.{left_out}('my-"),
        ]:
            with pytest.raises(UnmetNeeds) as caught:
                preflight.check(needs)
            assert len(caught.value.missing) == 1
            assert mended in str(caught.value)
            assert isinstance(caught.value, MissingHandler)
        # Handlers of another process are not looked for.
        Preflight(binding(*kinds)).check(needs)


def test_all_that_is_missing_is_named_at_once_with_what_needs_it() -> None:
    needs = Needs(
        retries=True,
        tools=(NeededTool("add"), NeededTool("search", Origin.MCP)),
        toolsets=(NeededToolset("late", (Origin.APPLICATION,)), NeededToolset("odd")),
    )
    with pytest.raises(UndeclaredOrigins) as caught:
        Preflight(binding(Kind.TOOL_CALL), handlers_of()).check(needs)
    assert caught.value.toolsets == ("odd",)
    assert [each.split(": ")[0] for each in caught.value.missing] == [
        "model requests",
        "retries after a delay",
        "tool 'add', toolset 'late'",
        "tool 'search'",
        "toolset 'odd'",
    ]
    assert "give it origins (application, mcp, workflow), or none at all" in str(caught.value)


def test_it_is_checked_again_when_capabilities_change_and_only_then() -> None:
    looked: list[Any] = []

    class Watched(Handlers):
        def __contains__(self, key: tuple[OperationKind, str]) -> bool:
            looked.append(key)
            return super().__contains__(key)

    handlers = Watched()
    handlers.register(Kind.MODEL_REQUEST, "my-model_request", worker)
    preflight = Preflight(binding(Kind.MODEL_REQUEST, Kind.TOOL_CALL), handlers)
    needs = Needs()
    preflight.check(needs)
    more = Needs(tools=(NeededTool("loaded"),))
    for _ in range(2):
        with pytest.raises(UnmetNeeds, match="'loaded'"):
            preflight.check(more)
    preflight.check(needs)
    handlers.register(Kind.TOOL_CALL, "my-tool_call", worker)
    preflight.check(more)
    looked.clear()
    preflight.check(more)
    assert looked == []


def test_a_run_whose_needs_are_not_met_needs_attention_without_a_record(tmp_path: Path) -> None:
    app, handlers = app_on(tmp_path), handlers_of(Kind.MODEL_REQUEST)

    @app.run(version=1)
    async def work(context: Context) -> None:
        runtime = EmbeddedRuntime(context, handlers)
        ids = {Kind.MODEL_REQUEST: "my-model_request", Kind.TOOL_CALL: "my-tool_call"}
        bound = Binding(run_id=RUN, runtime=runtime, handler_ids=ids)
        runtime.preflight(bound).check(Needs(tools=(NeededTool("refund"),)))
        await bound.execute(Kind.MODEL_REQUEST, "model.request", 1, b"1")

    with pytest.raises(
        RunNeedsAttention, match=r"did nothing.*'refund'.*@handlers.tool_call"
    ) as failed:
        run(once(app, work))
    assert failed.value.code == "UnmetNeeds"
    assert run(operations(app)) == []
