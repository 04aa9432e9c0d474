from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Self

from benchmarks.row import Figure, Target

RUNS = 5
"""The fewest runs that a median is taken of."""


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the sample that `share` of the samples are not above."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def paired(ours: Sequence[float], floor: Sequence[float]) -> float:
    """Return the median of the ratios of samples that were taken one after the other."""
    return median(one / other for one, other in zip(ours, floor, strict=True))


def in_milliseconds(
    label: str,
    samples: Sequence[float],
    floors: Sequence[float],
    targets: Sequence[Target],
    name: str = "",
) -> Figure:
    """Return the figure of seconds that were measured in turn with their floor."""
    return Figure(
        label=label,
        value=median(samples) * 1000,
        unit="ms",
        floor=median(floors) * 1000,
        floor_unit="ms",
        ratio=paired(samples, floors),
        targets=targets,
        name=name,
        samples=[sample * 1000 for sample in samples],
        floor_samples=[sample * 1000 for sample in floors],
    )


def a_second(
    label: str,
    samples: Sequence[float],
    floors: Sequence[float],
    targets: Sequence[Target],
    name: str = "",
) -> Figure:
    """Return the figure of rates that were measured in turn with their floor."""
    return Figure(
        label=label,
        value=median(samples),
        unit="/s",
        floor=median(floors),
        floor_unit="/s",
        ratio=paired(samples, floors),
        targets=targets,
        name=name,
        samples=samples,
        floor_samples=floors,
    )


async def interleaved(
    runs: int,
    floor: Callable[[], float | Awaitable[float]],
    ours: Callable[[], Awaitable[float]],
) -> tuple[list[float], list[float]]:
    """Take samples in turn: floor, ours, floor, ours; return ours and the floor's."""
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        gc.collect()
        sample = floor()
        samples[1].append(await sample if isinstance(sample, Awaitable) else sample)
        gc.collect()
        samples[0].append(await ours())
    return samples


class Ticker:
    """Measures for how long the event loop does not get back to a task that only waits."""

    def __init__(self, pause_seconds: float = 0.0005) -> None:
        self.stalls: list[float] = []
        self._pause_seconds = pause_seconds
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _tick(self) -> None:
        while True:
            due = time.perf_counter() + self._pause_seconds
            await asyncio.sleep(self._pause_seconds)
            self.stalls.append(max(0.0, time.perf_counter() - due))
