"""Workers that die, freeze and lose the database while they work: every run ends, once."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path

from perdure import App, Context, RetryPolicy, WorkerOptions, current, effect
from tests.acceptance.children import Child, note, notes, query, running, until
from tests.acceptance.samples import ON_SERVER, SEED, amount
from tests.postgres_server import PostgresServer
from tests.storages import held, kept_on_server, url_of

_ROUNDS = amount("CHAOS_ROUNDS", usual=1, full=1)
_FAULTS = ("kill", "kill", "freeze", "blink", "lock")
_RUNS = 120 * _ROUNDS
_STEPS = 6
_TOUCHING = _RUNS // 4
_TOUCHES = 3
_LEASE_SECONDS = 1.5


def work_on(folder: Path) -> None:
    app = _app(folder)

    async def main() -> None:
        async with app:
            await asyncio.Event().wait()

    asyncio.run(main())


def _app(folder: Path) -> App:
    options = WorkerOptions(lease_seconds=_LEASE_SECONDS, concurrency=12)
    app = App(url_of(folder), worker=options)

    quick = RetryPolicy(attempts=20, initial_seconds=0.02, maximum_seconds=0.02)

    @effect(support="idempotent", retry=quick)
    async def step(run_id: str, number: int) -> int:
        context = current()
        assert context is not None
        generation = context._performer.fence.generation
        note(folder / "steps.log", run=run_id, step=number, generation=generation)
        await asyncio.sleep(0.02 + 0.01 * number)
        if number == 3 and random.random() < 0.3:
            raise ConnectionError("again")
        return number

    @app.run(version=1)
    async def stepping(context: Context, number: int) -> int:
        total = 0
        for step_number in range(1, _STEPS - 1):
            total += await context.call(step, context.run_id, step_number)
            await context.sleep(0.02)
        both = await asyncio.gather(
            *(context.call(step, context.run_id, n) for n in (_STEPS - 1, _STEPS))
        )
        return number + total + sum(both)

    async def touch(run_id: str, number: int) -> None:
        note(folder / "touches.log", run=run_id, touch=number)
        await asyncio.sleep(0.02)

    @app.run(version=1)
    async def touching(context: Context) -> None:
        for number in range(_TOUCHES):
            await context.call(touch, context.run_id, number)
            await context.sleep(0.05)

    return app


async def _start_all(folder: Path) -> None:
    async with _app(folder).connect() as app:
        starts = [app.start("stepping", n, run_id=f"run-{n}") for n in range(_RUNS)]
        for n in range(_TOUCHING):
            starts.insert(5 * n, app.start("touching", run_id=f"touching-{n}"))
        await asyncio.gather(*starts)


def test_every_run_ends_once_whatever_happens_to_its_workers(folder: Path) -> None:
    chance = random.Random(SEED)
    faults = [fault for _ in range(_ROUNDS) for fault in chance.sample(_FAULTS, len(_FAULTS))]
    _storm(folder, chance, faults)


@ON_SERVER
def test_every_run_ends_once_whatever_happens_to_its_server(
    tmp_path: Path, own_server: PostgresServer
) -> None:
    chance = random.Random(SEED)
    faults = [fault for _ in range(_ROUNDS) for fault in ("crash", "kill", "crash", "crash")]
    with kept_on_server(tmp_path, own_server.url):
        _storm(tmp_path, chance, faults, own_server)


def _storm(
    folder: Path, chance: random.Random, faults: list[str], server: PostgresServer | None = None
) -> None:
    asyncio.run(_start_all(folder))
    with ExitStack() as stack:
        workers = [stack.enter_context(running(folder, work_on, folder)) for _ in range(3)]
        for fault in faults:
            time.sleep(chance.uniform(0.05, 0.3))
            index = chance.randrange(len(workers))
            match fault:
                case "kill":
                    workers[index].kill()
                    workers[index] = stack.enter_context(running(folder, work_on, folder))
                case "freeze":
                    _freeze(workers[index], _LEASE_SECONDS + chance.uniform(0.1, 0.4))
                case "blink":
                    _freeze(workers[index], chance.uniform(0.05, 0.5))
                case "lock":
                    _lock(folder, chance.uniform(0.1, 1.0))
                case _:
                    assert server is not None
                    server.crash()
        began = time.monotonic()
        until(lambda: _unfinished(folder) == 0, *workers)
        took = time.monotonic() - began
        assert all(worker.alive for worker in workers)
    print(f"{faults}; the last run ended {took:.2f} s after the last fault")
    _check(folder)
    _check_touches(folder)


def _freeze(worker: Child, seconds: float) -> None:
    worker.signal(signal.SIGSTOP)
    time.sleep(seconds)
    worker.signal(signal.SIGCONT)


def _lock(folder: Path, seconds: float) -> None:
    with held(folder):
        time.sleep(seconds)


def _unfinished(folder: Path) -> int:
    ((count,),) = query(
        folder / "runs.db",
        "SELECT count(*) FROM runs WHERE state NOT IN ('completed', 'needs_attention')",
    )
    return count


def _check(folder: Path) -> None:
    outputs = query(
        folder / "runs.db",
        "SELECT run_id, CAST(output AS TEXT) FROM runs WHERE function = 'stepping'",
    )
    total = sum(range(1, _STEPS + 1))
    assert dict(outputs) == {f"run-{n}": str(n + total) for n in range(_RUNS)}
    attempts = dict(query(folder / "runs.db", "SELECT run_id, generation FROM runs"))
    endings = query(
        folder / "runs.db",
        "SELECT sum(CASE WHEN ending = 'completed' THEN 1 ELSE 0 END),"
        " sum(CASE WHEN ending IS NULL THEN 1 ELSE 0 END) FROM attempts"
        " JOIN runs USING (run_number) WHERE function = 'stepping' GROUP BY run_number",
    )
    assert set(endings) == {(1, 0)}
    recorded = {
        (run_id, sequence): (generation, attempt)
        for run_id, sequence, generation, attempt in query(
            folder / "runs.db",
            "SELECT run_id, sequence, records.generation, attempt FROM records"
            " JOIN runs USING (run_number) WHERE step_id = 'call' AND function = 'stepping'",
        )
    }
    assert len(recorded) == _RUNS * _STEPS
    starts: dict[tuple[str, int], int] = defaultdict(int)
    for line in notes(folder / "steps.log"):
        key = (line["run"], line["step"])
        starts[key] += 1
        recorded_by, _ = recorded[key]
        again = f"{key} was in the journal and was called again"
        assert line["generation"] <= recorded_by, again
    for key, count in starts.items():
        assert count <= attempts[key[0]] + recorded[key][1] - 1, key


def _check_touches(folder: Path) -> None:
    """Check the runs whose effects may not happen twice: each did once, or a person is asked."""
    touches = Counter((line["run"], line["touch"]) for line in notes(folder / "touches.log"))
    assert set(touches.values()) == {1}
    ends = query(
        folder / "runs.db",
        "SELECT runs.run_id, runs.state, runs.problem_code,"
        " sum(CASE WHEN receipts.state = 'completed' THEN 1 ELSE 0 END),"
        " sum(CASE WHEN receipts.state = 'ambiguous' THEN 1 ELSE 0 END), count(*)"
        " FROM runs JOIN receipts ON receipts.run_id = runs.run_id WHERE function = 'touching'"
        " GROUP BY runs.run_id, runs.state, runs.problem_code",
    )
    assert len(ends) == _TOUCHING
    parked = 0
    for run_id, state, code, completed, ambiguous, begun in ends:
        touched = sum(touches[run_id, number] for number in range(_TOUCHES))
        if state == "completed":
            assert (completed, ambiguous, touched) == (_TOUCHES, 0, _TOUCHES), run_id
        else:
            assert (code, completed, ambiguous) == ("EffectAmbiguous", begun - 1, 1), run_id
            assert begun - 1 <= touched <= begun, run_id
            parked += 1
    print(f"of {_TOUCHING} runs that may touch nothing twice, {parked} ask a person")
