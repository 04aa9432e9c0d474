"""Workers that were open before others began to encrypt with a key that they do not have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunState
from perdure.encryption import Keyring
from perdure.engine.reencryption import reencrypt
from perdure.engine.stalled import given_back
from perdure.engine.store import ClaimedRun
from perdure.fence import Fence
from tests.dispatching import Switchboard, ends_of
from tests.encrypting import keyring
from tests.harness import RUN, Pause, app_on, attempts, run, sql, until

OLD, BOTH = keyring("a"), keyring("b", only=False)
STOPS = "takes no more of the runs that wait: the store holds what is encrypted with 'b' by now"


def working(folder: Path, encryption: Keyring, pause: Pause | None = None, **options: Any) -> App:
    """Return an App that executes one run at a time, which pauses behind an operation or waits."""
    app = app_on(folder, encryption=encryption, concurrency=1, **options)

    async def echo(value: Any) -> Any:
        return value

    @app.run(version=1)
    async def work(context: Context, value: Any) -> Any:
        done = await context.call(echo, value)
        if pause is not None:
            await pause()
        return done

    @app.run(version=1)
    async def listen(context: Context, value: Any) -> Any:
        await context.call(echo, value)
        return await context.wait_for("word")

    @app.run(version=1)
    async def hold(context: Context) -> None:
        await Pause()()

    return app


async def needs_it_for_its_input(folder: Path, old: App) -> None:
    async with working(folder, BOTH).connect() as app:
        await app.start("work", 7, run_id=RUN)


async def needs_it_for_a_record(folder: Path, old: App) -> None:
    await old.start("hold", run_id="in-its-place")
    async with working(folder, OLD).connect() as app:
        await app.start("work", 7, run_id=RUN)
    pause = Pause()
    async with working(folder, BOTH, pause):
        await pause.reached.wait()
    await old.cancel("in-its-place")


async def needs_it_for_a_message(folder: Path, old: App) -> None:
    await old.start("listen", 1, run_id=RUN)
    async with working(folder, BOTH).connect() as app:
        await app.send(RUN, "word", 7)


def counted(store: Any, name: str) -> list[int]:
    """Count the calls of a method of a store."""
    calls, genuine = list[int](), getattr(store, name)

    async def counting(*given: Any, **named: Any) -> Any:
        calls.append(len(calls))
        return await genuine(*given, **named)

    setattr(store, name, counting)
    return calls


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize(
    "leave", [needs_it_for_its_input, needs_it_for_a_record, needs_it_for_a_message]
)
def test_a_run_whose_key_a_worker_lacks_goes_on_at_one_that_has_it(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    leave: Callable[[Path, App], Awaitable[None]],
) -> None:
    """The other worker says so, once, and takes no more, but for what is started there."""

    async def main() -> None:
        old = working(tmp_path, OLD)
        async with old:
            looks, claims = counted(old.store, "missing_keys"), counted(old.store, "claim_runs")
            await leave(tmp_path, old)
            await until(lambda: STOPS in caplog.text)
            claimed = len(claims)
            # Sweep after sweep, although the run waits for anybody.
            await until(lambda: len(looks) > 9)
            row = await old.store.list_runs(state=RunState.PENDING, limit=9)
            assert ([one.run_id for one in row], len(claims)) == ([RUN], claimed)
            assert await (await old.start("work", 8)).result() == 8
            async with working(tmp_path, BOTH) as new:
                assert await new.handle(RUN).result() == 7
            assert caplog.text.count(STOPS) == 1

    run(main())
    endings = [attempt.ending for attempt in run(attempts(working(tmp_path, BOTH)))]
    assert endings[-2:] == ["locked", "completed"]
    assert endings.count("locked") == 1


@pytest.mark.usefixtures("storage")
def test_a_dispatcher_that_asks_for_such_a_run_is_told_that_it_cannot_be_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        board, old = Switchboard(), working(tmp_path, OLD, linger_seconds=0.0)
        board.dispatch(old)
        async with old:
            await old.start("listen", 1, run_id=RUN)
            (driver,) = board.drivers
            await until(lambda: ends_of(board.drives, RUN) == [RunState.SUSPENDED])
            claims = counted(old.store, "claim_runs")
            async with working(tmp_path, BOTH).connect() as app:
                await app.send(RUN, "word", 7)
            assert await driver.drive(RUN) is None
            assert await driver.drive(RUN) is None
            assert len(claims) == 1
        assert caplog.text.count(STOPS) == 1

    run(main())


@pytest.mark.usefixtures("storage")
def test_a_worker_takes_runs_again_once_no_key_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with working(tmp_path, OLD) as old:
            await needs_it_for_its_input(tmp_path, old)
            await until(lambda: STOPS in caplog.text)
            back = working(tmp_path, keyring("a", only=False))
            async with back.connect():
                async for some in reencrypt(back.store):
                    assert some.unreadable == []
                await back.store.end_resealing(whole=True, rewrite=False)
            assert await old.handle(RUN).result() == 7

    run(main())


@pytest.mark.usefixtures("storage")
def test_a_run_whose_key_nobody_is_known_to_have_waits_for_a_person(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        for run_id, encryption in (("first", OLD), (RUN, BOTH)):
            async with working(tmp_path, encryption).connect() as app:
                await app.start("work", 7, run_id=run_id)
        sql(tmp_path, "DELETE FROM keys WHERE key_id = 'b'")
        async with working(tmp_path, OLD) as old:
            await until(lambda: f"run {RUN}: needs attention" in caplog.text)
            assert await (await old.start("work", 8, run_id="behind")).result() == 8
        state = sql(tmp_path, "SELECT state, problem_code FROM runs WHERE run_id = ?", RUN)
        assert state == [("needs_attention", "KeyUnavailable")]

    run(main())


@pytest.mark.usefixtures("storage")
def test_workers_that_lack_its_key_are_not_held_to_have_given_a_run_up(tmp_path: Path) -> None:
    """Otherwise code that is cancelled with its loop would be held to have cancelled itself."""

    async def main() -> None:
        async with working(tmp_path, OLD).connect() as app:
            await app.start("work", 7, run_id=RUN)
            holder = await app.store.register_worker("w", 60.0)
            for _ in range(9):
                (claim,) = await app.store.claim_runs(holder, app.functions, 1)
                await app.store.release_run(claim.fence, locked=True)
            claim = ClaimedRun(Fence(RUN, holder, 10), "work", 1, b"7", 1.0, recovered=True)
            assert await given_back(app.store, claim) == 0

    run(main())
