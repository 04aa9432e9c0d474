"""How much of all that could go wrong a test tries: a sample of every kind, or all of it in CI.

`PERDURE_TEST_FULL=1` asks for all, and `PERDURE_TEST_<NAME>` for another number of one thing.
`PERDURE_TEST_STORAGES` names the kinds of storage: `sqlite` by default, `sqlite,postgres` in CI.
Whatever is left to chance follows from `PERDURE_TEST_SEED`.
"""

from __future__ import annotations

import os
import random
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

FULL = os.environ.get("PERDURE_TEST_FULL") == "1"
SEED = int(os.environ.get("PERDURE_TEST_SEED", "11"))

STORAGES = (
    os.environ.get("PERDURE_TEST_STORAGES") or ("sqlite,postgres" if FULL else "sqlite")
).split(",")
"""On which kinds of storage whatever is killed is killed."""

ON_SERVER = pytest.mark.skipif(
    "postgres" not in STORAGES, reason="takes a while: set PERDURE_TEST_STORAGES=postgres"
)

LONG = pytest.mark.skipif(not FULL, reason="takes a while: set PERDURE_TEST_FULL=1")
"""What CI runs, and nobody waits for besides."""

Crash = tuple[str, int]


def amount(name: str, *, usual: int, full: int) -> int:
    """Return how many of something to take."""
    return int(os.environ.get(f"PERDURE_TEST_{name}", full if FULL else usual))


def sample(cases: Sequence[T], kind: Callable[[T], Hashable]) -> list[T]:
    """Return one case of each kind, or every case where there is time."""
    if FULL:
        return [*cases]
    kinds: dict[Hashable, list[T]] = defaultdict(list)
    for case in cases:
        kinds[kind(case)].append(case)
    chance = random.Random(SEED)
    return [chance.choice(of_a_kind) for of_a_kind in kinds.values()]


def some(cases: Sequence[T], name: Callable[[T], bytes], *, of: int = 8) -> list[T]:
    """Return one in `of` of the cases, the same ones each time, or all where there is time."""
    return [case for case in cases if FULL or zlib.crc32(name(case)) % of == SEED % of]


def moment_of(crash: Crash) -> str:
    """Return what happens at a point, `commit.done record`, wherever in a run that is."""
    named = re.match(r"(commit|bank)\.\S+ [a-z_.]+(?= |$)|\S+", crash[0])
    assert named is not None
    return named[0]
