"""A turn of an agent in a store that encrypts: nothing of it can be read without the key."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry, RunContext

from perdure import (
    Context,
    OperationFailed,
    OperationIdentity,
    RetryPolicy,
    RunFailed,
    effect,
)
from perdure.adapters.pydantic_ai import Durable
from perdure.errors import EffectRejected
from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.encrypting import keyring, raw, shows
from tests.harness import app_on, run

SCRIPT = [
    Reply(
        text="MARK-said to the user",
        calls=[
            Call("pay", {"to": "MARK-payee"}),
            Call("search", {"words": ["MARK-word", "x" * 5000]}),
            Call("flaky", {"why": "MARK-flaky"}),
        ],
    ),
    Reply(calls=[Call("flaky", {"why": "MARK-again"}), Call("refuse", {"what": "MARK-what"})]),
    "MARK-answer",
]


def turning(folder: Path) -> Any:
    """Return an App with a run that asks an agent, tries again and waits, and one that fails."""
    agent = Agent(
        ScriptedModel(SCRIPT),
        name="clerk",
        instructions="MARK-instructions",
        capabilities=[Durable()],
    )
    app = app_on(folder, encryption=keyring())
    failed = list[str]()

    @agent.tool_plain
    @effect(support="idempotent", target="bank")
    def pay(to: str, operation: OperationIdentity) -> str:
        return f"MARK-paid {to}"

    @agent.tool_plain
    def search(words: list[str]) -> list[str]:
        return [f"MARK-found {number} for {words[0]}" + " and more" * 80 for number in range(12)]

    @agent.tool
    def flaky(ctx: RunContext, why: str) -> str:
        if ctx.retry == 0:
            raise ModelRetry("MARK-not yet")
        return "MARK-now"

    @agent.tool_plain
    @effect(support="at_least_once", target="shop")
    def refuse(what: str) -> str:
        raise EffectRejected(f"MARK-refused {what}")

    @effect(support="idempotent", retry=RetryPolicy(attempts=2, initial_seconds=0.001))
    async def once_more(what: str) -> str:
        failed.append(what)
        if len(failed) == 1:
            raise ConnectionError("MARK-no line")
        return f"MARK-done {what}"

    @app.run(version=1)
    async def turn(context: Context, question: str) -> str:
        try:
            await agent.run(question)
        except OperationFailed as refusal:
            done = await context.call(once_more, f"MARK-arguments {refusal.message}")
        await context.sleep(0.001)
        return f"MARK-result {done}"

    @app.run(version=1)
    async def failing(context: Context, question: str) -> str:
        raise LookupError(f"MARK-failure of {question}")

    return app


@pytest.mark.usefixtures("storage")
def test_who_has_no_key_sees_nothing_of_a_turn(tmp_path: Path) -> None:
    async def main() -> None:
        app = turning(tmp_path)
        async with app:
            handle = await app.start("turn", "MARK-question", run_id="turn-1")
            assert "MARK-done MARK-arguments MARK-refused MARK-what" in await handle.result()
            with pytest.raises(RunFailed, match="MARK-failure of MARK-other"):
                await (await app.start("failing", "MARK-other")).result()
            assert not shows(tmp_path, "MARK")
            operations = await app.store.list_operations("turn-1")
            kinds = {operation.kind for operation in operations}
            assert kinds == {"model_request", "tool_call", "retry_delay"}
            for operation in operations:
                place = ("turn-1", operation.step_id, operation.sequence)
                given = await app.store.read_input(*place)
                assert not shows(tmp_path, hashlib.sha256(given).digest())
                assert not shows(tmp_path, hashlib.sha256(given).hexdigest())
            receipts = await app.store.list_receipts(
                ambiguous_only=False, limit=99, run_id="turn-1"
            )
            assert {receipt.target for receipt in receipts} >= {"bank", "shop"}
        seen = await asyncio.to_thread(raw, tmp_path)
        assert b"MARK" not in seen
        assert b"bank" in seen  # a target stands in the open

    run(main())
