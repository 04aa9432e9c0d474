from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.conformance.pydantic_ai.execute import execute
from tests.conformance.pydantic_ai.journal import MemoryJournal
from tests.conformance.pydantic_ai.scenario import Shop

DONE_ONCE = {
    "charge 1": 1,
    "charge 2": 1,
    "ask": 1,
    "now_in UTC": 1,
    "now_in CET": 1,
    "flaky": 2,
    "refund": 1,
    "request": 5,
}

STEPS = [
    ("agent.2.mcp.list.clock", 0),
    ("agent.2.model.request", 1),
    ("agent.2.tool.call", 2),
    ("mcp.list.clock", 1),
    ("mcp.request", 4),
    ("mcp.request", 6),
    ("model.request", 1),
    ("model.request", 2),
    ("model.request", 3),
    ("tool.call", 1),
    ("tool.call", 2),
    ("tool.call", 3),
    ("tool.call", 5),
    ("tool.call", 7),
    ("tool.call.2.model.request", 1),
]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_second_execution_does_nothing_and_leaves_the_same_history(streamed: bool) -> None:
    journal = MemoryJournal()
    first = Shop(streamed=streamed)
    result = journal.run(first.turn)
    inputs = journal.inputs()

    second = Shop(streamed=streamed)
    again = journal.run(second.turn)

    assert {name: n for name, n in first.done.items() if "event" not in name} == DONE_ONCE
    assert not second.done
    assert journal.executed == 0
    assert journal.inputs() == inputs
    assert again.output == result.output == "All done."
    assert again.all_messages_json() == result.all_messages_json()
    assert again.usage == result.usage


def test_sequences_are_places_in_the_responses_whatever_finishes_first() -> None:
    shuffler = random.Random(7)
    for _ in range(6):
        journal = MemoryJournal()
        delays = [0, 0.002, 0.004]
        shuffler.shuffle(delays)
        journal.run(Shop(delays=delays).turn)
        assert journal.steps() == STEPS


@pytest.mark.parametrize("streamed", [False, True])
def test_a_run_goes_on_from_every_beginning_of_its_journal(streamed: bool) -> None:
    whole = MemoryJournal()
    result = whole.run(Shop(streamed=streamed).turn)
    for kept in range(len(whole.records)):
        journal = MemoryJournal()
        journal.records = whole.records[:kept]
        shop = Shop(streamed=streamed)
        again = journal.run(shop.turn)
        assert again.output == result.output
        assert journal.steps() == whole.steps()
        recorded = {record.invocation.handler_id for record in journal.records[:kept]}
        if "shop__function_toolset__till.call_tool.ask" in recorded:
            assert not shop.done["ask"]
        assert again.usage == result.usage


def test_a_run_released_by_one_app_is_replayed_by_the_next(tmp_path: Path) -> None:
    database = str(tmp_path / "runs.db")
    first = asyncio.run(execute(database, streamed=False, leave=True))
    second = asyncio.run(execute(database, streamed=False, leave=False))
    assert first["done"] == DONE_ONCE
    assert second == {**first, "done": {}}
    assert second["places"] == STEPS
