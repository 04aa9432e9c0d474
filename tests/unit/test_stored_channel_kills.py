"""On the stored channel, an attempt that died at any chunk is replaced on everybody's screen."""

from __future__ import annotations

import random
import secrets
from pathlib import Path

import pytest

from perdure.errors import LeaseLost
from tests.acceptance.samples import SEED, amount
from tests.harness import run
from tests.session_kills import DEAD, END, Plan, played
from tests.storages import url_of

CHUNKS = pytest.mark.parametrize("chunk", range(len(DEAD)))
_TOGETHER = 25


@CHUNKS
def test_nobody_sees_both_attempts(storage: str, tmp_path: Path, chunk: int) -> None:
    run(played(Plan(frozen=chunk, thawed=None, leaves=chunk // 2), url_of(tmp_path)))


@CHUNKS
def test_what_a_lost_worker_writes_late_is_refused(
    storage: str, tmp_path: Path, chunk: int
) -> None:
    thawed = (0, 3, END)[chunk % 3]
    it = run(played(Plan(frozen=chunk, thawed=thawed), url_of(tmp_path)))
    assert isinstance(it.refused, LeaseLost)


@pytest.mark.parametrize("chunk", range(1, len(DEAD)))
def test_what_is_written_late_without_a_fence_is_not_shown(
    storage: str, tmp_path: Path, chunk: int
) -> None:
    thawed = (0, 3, END)[chunk % 3]
    it = run(played(Plan(frozen=chunk, thawed=thawed, fenced=False), url_of(tmp_path)))
    assert it.refused is None


def planned(seed: int) -> Plan:
    chance = random.Random(seed)
    fenced = chance.random() < 0.5
    return Plan(
        # Without a fence, a start that comes late would be that of the newest attempt.
        frozen=chance.randrange(0 if fenced else 1, len(DEAD)),
        thawed=chance.choice([None, *range(END + 1)]),
        fenced=fenced,
        leaves=chance.randrange(len(DEAD)),
        returns=chance.randrange(END + 1),
        late=chance.randrange(END + 1),
        turns=[chance.choice((0, 1, 5, 20, 60)) for _ in range(7)],
    )


@pytest.mark.parametrize(
    "seeds",
    [
        range(first, first + _TOGETHER)
        for first in range(0, amount("SCHEDULES", usual=50, full=1000), _TOGETHER)
    ],
    ids=lambda seeds: f"{seeds.start}-{seeds.stop}",
)
def test_any_schedule_comes_to_the_same(seeds: range) -> None:
    for seed in seeds:
        plan = planned(seed + SEED * 1000)
        try:
            it = run(played(plan, f"memory:{secrets.token_hex(8)}"))
        except BaseException as error:
            raise AssertionError(f"{plan}") from error
        assert isinstance(it.refused, LeaseLost) or not plan.fenced or plan.thawed is None
