"""A database server that is killed and comes back, while runs wait for it."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from perdure import App, Context, StorageError, WorkerOptions, effect
from perdure.storage.postgres import database
from tests.acceptance.children import note, notes, query, running, until
from tests.acceptance.samples import LONG, ON_SERVER, SEED, amount
from tests.harness import run
from tests.postgres_server import LOCKED, PostgresServer
from tests.storages import kept_on_server, schema_of, url_of

pytestmark = LONG

_RUNS = 50
_DELAYS = amount("SWEEP_CRASHES", usual=1, full=5)


@pytest.fixture
def folder(own_server: PostgresServer, tmp_path: Path) -> Iterator[Path]:
    """Return a folder whose store is at a server that may crash."""
    with kept_on_server(tmp_path, own_server.url):
        yield tmp_path


def _app(
    folder: Path,
    name: str,
    *,
    probe: bool = False,
    busy_seconds: float = 60.0,
    lease_seconds: float = 1.0,
) -> App:
    def noting(point: str) -> None:
        if probe:
            note(folder / "points.log", point=point)

    options = WorkerOptions(
        name=name, lease_seconds=lease_seconds, concurrency=_RUNS, drain_seconds=0.0
    )
    app = App(url_of(folder), worker=options, probe=noting, busy_seconds=busy_seconds)

    @effect(support="idempotent")
    async def touch(run_id: str, number: int) -> int:
        note(folder / "touches.log", run=run_id, number=number, worker=name)
        while name == "dead" and number == 1:
            await asyncio.sleep(1)
        return number

    @app.run(version=1)
    async def touching(context: Context) -> list[int]:
        return [await context.call(touch, context.run_id, number) for number in range(3)]

    return app


def own_all(folder: Path) -> None:
    """Own every run, each of which stands in the middle of an effect, until killed."""
    app = _app(folder, "dead", lease_seconds=3600.0)  # its death ends it

    async def main() -> None:
        async with app:
            starts = [app.start("touching", run_id=f"run-{n}") for n in range(_RUNS)]
            await asyncio.gather(*starts)
            await asyncio.Event().wait()

    asyncio.run(main())


def work_on(folder: Path) -> None:
    """Execute runs until killed, and note the points that are passed."""
    app = _app(folder, "living", probe=True)

    async def main() -> None:
        async with app:
            await asyncio.Event().wait()

    asyncio.run(main())


def _states(folder: Path) -> dict[str, int]:
    return dict(query(folder / "runs.db", "SELECT state, count(*) FROM runs GROUP BY state"))


@pytest.mark.parametrize("number", range(_DELAYS))
def test_a_server_killed_in_the_middle_of_a_sweep_strands_no_run(
    folder: Path, own_server: PostgresServer, number: int
) -> None:
    """T18: at 50 runs of a dead worker, which all end without anybody's help."""
    chance = random.Random(f"{SEED}/{number}")
    with running(folder, own_all, folder) as dead:
        until(lambda: len(notes(folder / "touches.log", number=1)) == _RUNS, dead)
    assert _states(folder) == {"running": _RUNS}
    with running(folder, work_on, folder) as living:
        sweeping = {"point": "commit.begin sweep"}
        until(lambda: notes(folder / "points.log", **sweeping), living)
        # The first time in the sweep itself, later while it or what follows is under way.
        time.sleep(chance.uniform(0.0, 0.2) * number)
        own_server.crash()
        until(lambda: _states(folder) == {"completed": _RUNS}, living)
    endings = query(
        folder / "runs.db", "SELECT ending, count(*) FROM attempts GROUP BY ending ORDER BY ending"
    )
    assert dict(endings)["completed"] == _RUNS
    ended = query(folder / "runs.db", "SELECT state, count(*) FROM receipts GROUP BY state")
    assert ended == [("completed", 3 * _RUNS)]
    touched = Counter((line["run"], line["number"]) for line in notes(folder / "touches.log"))
    assert len(touched) == 3 * _RUNS
    assert {count for (_, number), count in touched.items() if number == 0} == {1}


def test_an_app_that_waits_for_nothing_survives_its_server(
    folder: Path, own_server: PostgresServer
) -> None:
    async def main() -> None:
        async with _app(folder, "patient") as app:
            for number in range(2):
                handle = await app.start("touching", run_id=f"run-{number}")
                assert await handle.result() == [0, 1, 2]
                own_server.crash()

    run(main())


def test_while_the_server_is_away_callers_wait_and_then_are_told(
    folder: Path, own_server: PostgresServer
) -> None:
    async def main() -> None:
        impatient = App(url_of(folder), busy_seconds=2.0)
        async with _app(folder, "patient") as app, impatient.connect():
            own_server.stop(signal.SIGQUIT)
            waiting = asyncio.create_task(app.start("touching", run_id="run-1"))
            with pytest.raises(StorageError, match=r"what was acknowledged is safe|no connection"):
                await impatient.list()
            own_server.start()
            assert await (await waiting).result() == [0, 1, 2]
            assert [row.run_id for row in await impatient.list()] == ["run-1"]

    run(main())


@ON_SERVER
def test_whoever_waited_long_for_the_server_goes_on_at_once(
    folder: Path, own_server: PostgresServer
) -> None:
    async def main() -> None:
        async with _app(folder, "patient") as app:
            own_server.stop(signal.SIGQUIT)
            waiting = asyncio.create_task(app.start("touching", run_id="run-1"))
            await asyncio.sleep(8)
            own_server.start()
            back_at = time.monotonic()
            await waiting
            print(f"goes on {time.monotonic() - back_at:.2f} s after the server is back")
            # Pauses that grow would have come to another eight seconds.
            assert time.monotonic() - back_at < 6

    run(main())


def test_an_app_closes_although_its_server_is_away(
    folder: Path, own_server: PostgresServer
) -> None:
    async def main() -> None:
        async with _app(folder, "dead", busy_seconds=1.0) as app:
            await app.start("touching", run_id="run-1")
            await asyncio.to_thread(until, lambda: notes(folder / "touches.log", number=1))
            own_server.stop(signal.SIGQUIT)
        own_server.start()
        async with _app(folder, "living") as app:
            assert await app.handle("run-1").result() == [0, 1, 2]

    run(main())
    touched = [line["number"] for line in notes(folder / "touches.log")]
    assert sorted(touched) == [0, 1, 1, 2]


def test_an_app_that_opens_while_its_server_restarts_waits_for_it(
    folder: Path, own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_OPEN_SECONDS", 0.2)

    async def main() -> None:
        with psycopg.connect(own_server.url):  # for whom the server puts off its end
            stopping = asyncio.create_task(asyncio.to_thread(own_server.stop, signal.SIGTERM))
            await asyncio.to_thread(until, lambda: _turns_away(own_server))
            opening = asyncio.create_task(_app(folder, "one").__aenter__())
            await asyncio.sleep(0.5)
            assert not opening.done()
        await stopping
        await asyncio.sleep(0.5)
        assert not opening.done()
        own_server.start()
        app = await opening
        assert await app.list() == []
        await app.__aexit__(None, None, None)

    run(main())


def _turns_away(server: PostgresServer) -> bool:
    try:
        psycopg.connect(server.url).close()
    except psycopg.OperationalError:
        return True
    return False


def open_once(folder: Path) -> None:
    async def main() -> None:
        async with _app(folder, "one").connect() as app:
            await app.list()

    asyncio.run(main())


def test_eight_processes_that_open_at_once_make_one_schema(folder: Path) -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(running(folder, open_once, folder)) for _ in range(8)]
        for child in children:
            child.succeed()
    versions = [
        version for (version,) in query(folder / "runs.db", "SELECT version FROM migrations")
    ]
    assert sorted(versions) == [*range(1, len(versions) + 1)]


def test_a_wrong_password_is_told_and_a_right_one_is_let_in(
    folder: Path, own_server: PostgresServer
) -> None:
    schema = schema_of(folder)

    def url(password: str) -> str:
        host = f"127.0.0.1:{own_server.port}/postgres?schema={schema}"
        return f"postgresql://{LOCKED}:{password}@{host}"

    async def opened(password: str) -> None:
        async with App(url(password)).connect():
            pass

    with closing(psycopg.connect(own_server.url, autocommit=True)) as connection:
        connection.execute(f"CREATE ROLE {LOCKED} LOGIN PASSWORD 'right'".encode())
        connection.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {LOCKED}".encode())
    with pytest.raises(StorageError, match="password authentication failed") as refused:
        run(opened("hidden"))
    assert "hidden" not in str(refused.value)
    run(opened("right"))


def test_a_server_is_reached_through_its_socket(folder: Path, own_server: PostgresServer) -> None:
    where = f"host={own_server.sockets}&port={own_server.port}&user=postgres"
    app = App(f"postgresql:///postgres?{where}&schema={schema_of(folder)}")

    async def main() -> None:
        async with app.connect():
            assert await app.list() == []

    run(main())


def test_a_server_that_does_not_sync_is_refused(folder: Path, own_server: PostgresServer) -> None:
    own_server.stop()
    own_server.start(fsync="off")

    async def main() -> None:
        async with App(url_of(folder)).connect():
            pass

    with pytest.raises(StorageError, match=r"fsync is off at .*: turn it on"):
        run(main())
    own_server.stop()
    own_server.start()
