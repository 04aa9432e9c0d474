"""What peers do of each row; every function returns figures named as the row's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from statistics import median

from benchmarks.child import Child
from benchmarks.ledger import Ledger
from benchmarks.measure import RUNS, a_second, in_milliseconds, paired, percentile
from benchmarks.p8_size import ONE_RUN, RUN_A_TURN, TURNS, WARMING, WARMING_BYTES, weighed
from benchmarks.p9_large import OPERATIONS, OPERATIONS_EACH, RUNS_AT_ONCE
from benchmarks.p9_large import PAYLOAD_BYTES as LARGE_BYTES
from benchmarks.p10_footprint import FLOOR, fresh_import, watched
from benchmarks.payload import PAYLOAD_BYTES
from benchmarks.peers.catalog import DEAF_SECONDS
from benchmarks.peers.stage import Stage
from benchmarks.row import Figure, NotDurable
from benchmarks.storages import POSTGRES, SQLITE

_WATCHED_SECONDS = 10.0
_PATIENCE_SECONDS = 120.0
_BEHIND_SECONDS = 2.0
"""For what is written behind the back of whoever waits for a result."""


def _sequential(stage: Stage, name: str, operations: int, size: int) -> Figure:
    with stage.place(name) as place:
        floor = stage.floor(name).url
        runs = stage.setting.scale(RUNS, 2)
        given = (floor, runs, operations, size)
        samples, floors = stage.ask(place, "sequential", *given)
    return in_milliseconds(f"one run, {operations} operations, each", samples, floors, [], "each")


def _concurrent(stage: Stage, name: str, at_once: int, operations: int, size: int) -> Figure:
    with stage.place(name) as place:
        floor = stage.floor(name).url
        runs = stage.setting.scale(RUNS, 2)
        given = (floor, runs, at_once, operations, size)
        samples, floors = stage.ask(place, "concurrent", *given)
    label = f"{at_once} runs of {operations} operations at once"
    return a_second(label, samples, floors, [], "rate")


def sequential(stage: Stage) -> list[Figure]:
    operations = stage.fewer(stage.setting.scale(500, 50))
    return [_sequential(stage, "p1", operations, PAYLOAD_BYTES)]


def concurrent(stage: Stage) -> list[Figure]:
    operations = stage.fewer(stage.setting.scale(50, 5))
    return [_concurrent(stage, "p3", 64, operations, PAYLOAD_BYTES)]


def large(stage: Stage) -> list[Figure]:
    operations = stage.fewer(stage.setting.scale(OPERATIONS, 10))
    each = stage.fewer(OPERATIONS_EACH)
    return [
        _sequential(stage, "p9", operations, LARGE_BYTES),
        _concurrent(stage, "p9-rate", RUNS_AT_ONCE, each, LARGE_BYTES),
    ]


def single(stage: Stage) -> list[Figure]:
    count = stage.fewer(stage.setting.scale(100, 20))
    with stage.place("p5") as place:
        given = (stage.floor("p5").url, stage.setting.scale(RUNS, 2), count, PAYLOAD_BYTES)
        blocks, floors = stage.ask(place, "single", *given)
    return [
        in_milliseconds(
            f"a run of one operation, start to result, {name}",
            [percentile(block, share) for block in blocks],
            [percentile(block, share) for block in floors],
            [],
            name,
        )
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]


def replay(stage: Stage) -> list[Figure]:
    operations = stage.fewer(stage.setting.scale(2000, 100))
    rates: list[float] = []
    with stage.place("p6") as place:
        with stage.child(place, "hold", "recorded", operations) as child:
            child.hear(_PATIENCE_SECONDS * 5)
            time.sleep(_BEHIND_SECONDS)
        for _ in range(stage.setting.scale(RUNS, 2)):
            told = stage.ask(place, "replay", "recorded", operations)
            if told["called"]:
                raise NotDurable(f"{told['called']} recorded operations were called again")
            rates.append(operations / told["seconds"])
    return [
        Figure(
            label=f"replay of {operations} operations",
            value=median(rates),
            unit="/s",
            name="rate",
            samples=rates,
        )
    ]


def takeover(stage: Stage) -> list[Figure]:
    samples = [_takeover(stage, number) for number in range(stage.setting.scale(3, 1))]
    return [
        Figure(
            label="SIGKILL within an operation until it runs again",
            value=choose(samples),
            unit="s",
            name=name,
            samples=samples,
        )
        for name, choose in (("median", median), ("longest", max))
    ]


def _takeover(stage: Stage, number: int) -> float:
    """Kill the process that is within an operation while another lives, and see who goes on.

    Where that one does not, a third is started, and the time counts from there.
    """
    with stage.place(f"p7-{number}") as place, ExitStack() as living:
        ledger = Ledger(place.folder / "ledger")
        living.callback(ledger.close)

        def add(command: str, *arguments: object) -> Child:
            child = stage.child(place, command, *arguments, ledger=ledger.path)
            return living.enter_context(child)

        # The other one first: some begin at their start whatever a live one is within.
        both: dict[int, Child] = {}
        for command, arguments in (("stay", ()), ("begin", ("held", 1))):
            child = add(command, *arguments)
            child.hear(_PATIENCE_SECONDS)
            both[child.pid] = child
        pid, _ = _within(ledger, set(), _PATIENCE_SECONDS)
        both[pid].kill()
        if stage.variant.takes_over:
            began = time.monotonic()
            return _within(ledger, {pid}, _PATIENCE_SECONDS)[1] - began
        time.sleep(stage.setting.scale(DEAF_SECONDS, 1))
        if len(_holders(ledger)) > 1:
            raise RuntimeError("a live process went on with it, which nobody expected")
        began = time.monotonic()
        add("stay")
        return _within(ledger, {pid}, _PATIENCE_SECONDS)[1] - began


def _within(ledger: Ledger, but: set[int], seconds: float) -> tuple[int, float]:
    """Wait until another process is within the operation; return its pid and since when."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for pid, since in _holders(ledger).items():
            if pid not in but:
                return pid, since
        time.sleep(0.002)
    raise TimeoutError(f"it was not taken over within {seconds:.0f} s")


def _holders(ledger: Ledger) -> dict[int, float]:
    """Return who was within the operation, and since when."""
    within = [line for line in ledger.lines() if line[0] == "within"]
    return {int(pid): float(since) for _, _, pid, since in within}


def conversation(stage: Stage) -> list[Figure]:
    turns = stage.setting.scale(TURNS, TURNS // 5)
    figures: list[Figure] = []
    for name, how, command in (
        ("one run", ONE_RUN, "converse"),
        ("runs", RUN_A_TURN, "converse-by-turns"),
    ):
        with stage.place(f"p8-{command}") as place:
            stage.ask(place, "warm", WARMING, WARMING_BYTES)
            before = place.size()
            stage.ask(place, command, turns)
            figures.append(weighed(turns, name, how, place.size() - before))
    return figures


def footprint(stage: Stage) -> list[Figure]:
    cache = stage.setting.path("p10")
    statements = (FLOOR, stage.variant.statement)
    for statement in statements:
        fresh_import(statement, cache)
    floors, theirs = (
        [fresh_import(statement, cache) for _ in range(stage.setting.scale(11, 2))]
        for statement in statements
    )
    seconds = in_milliseconds(
        "import", [t for t, _ in theirs], [t for t, _ in floors], [], "import"
    )
    sizes = [size / 1e6 for _, size in theirs]
    floor_sizes = [size / 1e6 for _, size in floors]
    memory = Figure(
        label="import: memory",
        value=median(sizes),
        unit="MB",
        floor=median(floor_sizes),
        floor_unit="MB",
        ratio=paired(sizes, floor_sizes),
        name="memory",
        samples=sizes,
    )
    return [seconds, memory, *_idle(stage)]


def _idle(stage: Stage) -> list[Figure]:
    if "P10 idle" in stage.variant.cannot:
        return []
    with stage.place("p10-idle") as place, stage.child(place, "stay") as child:
        child.hear(_PATIENCE_SECONDS)
        size, share = watched(child.pid, stage.setting.scale(int(_WATCHED_SECONDS), 1))
    return [
        Figure(label="an idle worker: memory", value=size, unit="MB", name="idle"),
        Figure(label="an idle worker: share", value=share * 100, unit="%", name="idle share"),
    ]


ROWS: Mapping[str, tuple[frozenset[str], Callable[[Stage], list[Figure]]]] = {
    "P1": (frozenset({SQLITE}), sequential),
    "P2": (frozenset({POSTGRES}), sequential),
    "P3": (frozenset({SQLITE}), concurrent),
    "P4": (frozenset({POSTGRES}), concurrent),
    "P5": (frozenset({SQLITE, POSTGRES}), single),
    "P6": (frozenset({SQLITE, POSTGRES}), replay),
    "P7": (frozenset({SQLITE, POSTGRES}), takeover),
    "P8": (frozenset({SQLITE, POSTGRES}), conversation),
    "P9": (frozenset({SQLITE, POSTGRES}), large),
    "P10": (frozenset({SQLITE}), footprint),
}

WRITTEN = frozenset({"P1", "P2", "P3", "P4", "P5", "P7", "P9"})
"""Where nothing counts that is not durable; the others look at what came to the disk."""
