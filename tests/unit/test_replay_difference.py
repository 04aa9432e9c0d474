from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunNeedsAttention, operation
from perdure.codec import Codec
from perdure.engine.rehearsal import Verdict
from perdure.journal.difference import difference
from tests.harness import Pause, app_on, interrupt, run

LONG = "a" * 500


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({"args": [1, {"cents": 5}]}, {"args": [1, {"cents": 7}]}, "args[1].cents was 5 and is 7"),
        ({"a": [1, 2]}, {"a": [1]}, "a[1] is gone, and was 2"),
        ({"a": 1}, {"a": 1, "b": None}, "b is new: null"),
        ([1], {"a": 1}, 'it was [1] and is {"a":1}'),
        (1, True, "it was 1 and is true"),
        (1, 1.0, "it was 1 and is 1.0"),
        (timedelta(1), timedelta(2), "timedelta[0] was 1 and is 2"),
        ((1,), [1], "it was {"),
        (f"{LONG}x{LONG}", f"{LONG}y{LONG}", 'it was "…aaaaaaaaaaxaaa'),
        (1, 1, ""),
    ],
)
def test_the_first_difference_of_two_inputs_is_told(old: Any, new: Any, told: str) -> None:
    said = difference(*(Codec().encode(each) for each in (old, new)))
    assert said.startswith(told)
    assert len(said) <= 300
    assert bool(said) == bool(told)


def test_a_difference_is_short_whatever_it_is_between() -> None:
    deep = [{LONG: {LONG: each * 900}} for each in ("\x01", "\x02")]
    assert 200 < len(difference(*(json.dumps(each).encode() for each in deep))) <= 300
    nested = b"[" * 5000 + b"%d" + b"]" * 5000
    assert difference(nested % 1, nested % 2) == ""


@operation(read_only=True)
async def price(order: dict[str, Any]) -> int:
    return len(order)


def shop(folder: Path, cents: int, seconds: int, pause: Pause) -> App:
    app = app_on(folder)

    @app.run(version=1)
    async def work(context: Context, which: str) -> None:
        if which == "call":
            await context.call(price, {"order": "A-1", "cents": cents})
            await pause()
        await context.sleep(seconds)

    return app


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ("call", "sha: args[0].cents was 1999 and is 2999; nothing was called"),
        ("sleep", "sha: delay_ms was 3600000 and is 7200000; nothing was called"),
    ],
)
def test_a_mismatch_says_what_is_another_input(tmp_path: Path, which: str, told: str) -> None:
    async def main() -> tuple[str, str]:
        pause = Pause()
        right = shop(tmp_path, 1999, 3600, pause)
        if which == "call":
            await interrupt(right, pause, "work", which)
        else:
            async with right:
                await right.start("work", which, run_id="run-1")
                while not (await right.store.read_journal("run-1")).timers:
                    await asyncio.sleep(0)
        changed = shop(tmp_path, 2999, 7200, pause)
        async with changed.connect():
            found = await changed.rehearse("run-1")
            assert found.verdict is Verdict.DIFFERS
        async with changed:
            with pytest.raises(RunNeedsAttention) as caught:
                await changed.handle("run-1").result()
        return found.reason, caught.value.message

    for message in run(main()):
        *_, digest, rest = re.split(r"([0-9a-f]{64})", message)
        assert f"sha{rest}".startswith(told), digest
