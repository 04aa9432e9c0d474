"""Runs on Temporal, as far as no server is needed: URLs, documents, and histories of old."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowHistory
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from perdure import App
from perdure.engine.dispatch import Rested, WaitingRun
from perdure.engine.store import RunState
from perdure.errors import (
    InvalidOptions,
    InvalidUrl,
    RuntimeUnreachable,
    StorageBusy,
    UnknownRun,
)
from perdure.runtimes.temporal.address import address_of
from perdure.runtimes.temporal.payload import document_of, document_value
from perdure.runtimes.temporal.run_activity import drive_activity
from perdure.runtimes.temporal.run_documents import (
    RunRequest,
    request_of,
    request_value,
    rested_of,
)
from perdure.runtimes.temporal.run_workflow import RunWorkflow
from perdure.runtimes.temporal.search import attributes_of
from tests.harness import run

HISTORIES = sorted((Path(__file__).parents[1] / "vectors" / "temporal_runs").glob("*.json"))
NOBODY = "temporal://127.0.0.1:1/default?task_queue=agents"
ENDLESS = b'{"run_id": "run-1", "function": "work@1", "heartbeat_seconds": 1e300}'
REQUEST = RunRequest("run-1", "work@1", 15.0)


def test_a_url_says_where_runs_are() -> None:
    plain = address_of("temporal://here")
    assert (plain.target, plain.namespace, plain.task_queue) == ("here:7233", "default", "perdure")
    assert (plain.tls, plain.heartbeat_seconds, plain.store) == (False, None, None)
    url = "temporal://[::1]:17233/shop.a1b2c?task_queue=agents&tls=true&heartbeat_seconds=2.5"
    full = address_of(f"{url}&store=postgresql://db/agents?schema=one")
    assert (full.target, full.namespace, full.task_queue) == ("[::1]:17233", "shop.a1b2c", "agents")
    assert (full.tls, full.heartbeat_seconds) == (True, 2.5)
    assert full.store == "postgresql://db/agents?schema=one"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("temporal://", "temporal://host:7233/namespace"),
        ("temporals://here", "temporal://host:7233/namespace"),
        ("temporal:here", "temporal://host:7233/namespace"),
        ("temporal://ada:pw@here/default", "no user"),
        ("temporal://here/default#x", "no fragment"),
        ("temporal://here:port/default", "temporal://host:7233/namespace"),
        ("temporal://here/a/b", "namespace"),
        ("temporal://here?queue=agents", "'queue'"),
        ("temporal://here?tls=true&tls=false", "'tls'"),
        ("temporal://here?tls=yes", "true or false"),
        ("temporal://here?task_queue=a b", "task queue"),
        ("temporal://here?task_queue", "temporal://host:7233/namespace"),
        ("temporal://here?heartbeat_seconds=0", "over 0"),
        ("temporal://here?heartbeat_seconds=nan", "over 0"),
        ("temporal://here?heartbeat_seconds=1e300", "up to 86400"),
    ],
)
def test_a_url_that_says_nothing_is_refused(url: str, why: str) -> None:
    with pytest.raises(InvalidUrl, match=why):
        App(url, store="memory:")


def test_runs_on_temporal_have_one_store() -> None:
    for url, options in (
        (NOBODY, {}),
        (f"{NOBODY}&store=memory:", {"store": "memory:"}),
        ("memory:", {"store": "sqlite:///runs.db"}),
    ):
        with pytest.raises(InvalidUrl, match="store="):
            App(url, **options)
    assert App(f"{NOBODY}&store=memory:").store_url == "memory:"


def test_what_connects_is_an_async_function_that_returns_a_client_of_the_namespace() -> None:
    async def connect() -> Any:
        return "a client"

    for url, options in (
        ("memory:", {"temporal": connect}),
        (NOBODY, {"store": "memory:", "temporal": "127.0.0.1:7233"}),
        (NOBODY, {"store": "memory:", "temporal": lambda: None}),
    ):
        with pytest.raises(InvalidOptions, match="temporal="):
            App(url, **options)

    async def main() -> None:
        async with App(NOBODY, store="memory:", temporal=connect):
            pass

    with pytest.raises(InvalidOptions, match="a client"):
        run(main())


def test_a_worker_that_reaches_no_server_does_not_begin_and_others_only_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is started then is written, and executed when some worker sees it."""
    app = App(NOBODY, store=f"sqlite:///{tmp_path}/runs.db")

    @app.run(version=1)
    async def work(context: Any) -> None: ...

    async def main() -> None:
        with pytest.raises(RuntimeUnreachable, match=r"no Temporal server answers at 127\.0\.0\.1"):
            async with app:
                pass
        async with app.connect():
            handle = await app.start(work, run_id="run-1")
            assert await handle.status() is RunState.PENDING
            assert await handle.cancel() is RunState.CANCELLED

    run(main())
    assert "Temporal hears of run run-1 later" in caplog.text


class _Driver:
    """Answers what it is told to, and remembers who was to be cancelled."""

    def __init__(self, answer: Rested | Exception | None) -> None:
        self.answer = answer
        self.cancelled: list[str] = []
        self.ended: list[str] = []

    async def drive(self, run_id: str) -> Rested | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def cancel(self, run_id: str) -> None:
        self.cancelled.append(run_id)


def _driven(driver: _Driver, request: RunRequest | RawValue, *, closing: bool = False) -> RawValue:
    activity = drive_activity(driver, lambda: closing, driver.ended.append)
    given = request if isinstance(request, RawValue) else request_value(request)

    async def main() -> RawValue:
        return await ActivityEnvironment().run(activity, given)

    return run(main())


def test_an_attempt_says_how_the_run_stands() -> None:
    driver = _Driver(Rested(RunState.SLEEPING, 7.5))
    answer = _driven(driver, REQUEST)
    assert rested_of(answer) == Rested(RunState.SLEEPING, 7.5)
    assert driver.cancelled == []
    _driven(driver, RunRequest("run-1", "work@1", 15.0, cancel=True))
    assert driver.cancelled == ["run-1"]
    assert driver.ended == []
    driver.answer = Rested(RunState.FAILED)
    _driven(driver, REQUEST)
    assert driver.ended == ["run-1"]


@pytest.mark.parametrize(
    ("answer", "closing", "type_name", "final", "seconds"),
    [
        (None, False, "NotNow", False, 1.0),
        (None, True, "NotNow", False, 0.1),
        (UnknownRun("there is no run"), False, "UnknownRun", False, None),
        (StorageBusy("it is locked"), False, "StorageBusy", False, None),
    ],
    ids=["not now", "closing", "unknown", "storage"],
)
def test_an_attempt_that_comes_to_nothing_says_whether_another_may(
    answer: Exception | None, closing: bool, type_name: str, final: bool, seconds: float | None
) -> None:
    with pytest.raises(ApplicationError) as caught:
        _driven(_Driver(answer), REQUEST, closing=closing)
    error = caught.value
    assert (error.type, error.non_retryable) == (type_name, final)
    delay = error.next_retry_delay
    assert (None if delay is None else delay.total_seconds()) == seconds


@pytest.mark.parametrize(
    "document", [b"", b"null", b"[]", b'{"run_id": 1}', b'{"run_id": "run-1"}', b"\xff", ENDLESS]
)
def test_a_request_that_is_none_is_refused_for_good(document: bytes) -> None:
    with pytest.raises(ApplicationError) as caught:
        _driven(_Driver(None), document_value(document))
    assert (caught.value.type, caught.value.non_retryable) == ("InvalidPayload", True)


def test_a_payload_of_another_converter_is_refused_for_good() -> None:
    strange = RawValue(Payload(metadata={"encoding": b"binary/other"}, data=b"x"))
    with pytest.raises(ApplicationError) as caught:
        _driven(_Driver(None), strange)
    assert (caught.value.type, caught.value.non_retryable) == ("InvalidPayload", True)


def test_a_run_of_another_store_is_left_to_others_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And then it fails, as one does that was deleted since."""
    activity = drive_activity(_Driver(UnknownRun("there is no run")), lambda: False, print)
    environment = ActivityEnvironment()
    for attempt, final in ((1, False), (19, False), (20, True)):
        environment.info = dataclasses.replace(environment.info, attempt=attempt)
        with pytest.raises(ApplicationError, match="another store") as caught:
            run(_performed(environment, activity))
        assert caught.value.non_retryable is final
    assert caplog.text.count("give each store a task_queue of its own") == 1


async def _performed(environment: ActivityEnvironment, activity: Any) -> Any:
    return await environment.run(activity, request_value(REQUEST))


def test_a_run_is_found_by_what_it_is() -> None:
    def found(session: str | None) -> dict[str, Any]:
        pairs = attributes_of(WaitingRun("run-1", "work", 2, session)).search_attributes
        return {pair.key.name: pair.value for pair in pairs}

    assert found(None) == {"PerdureFunction": "work@2"}
    assert found("support") == {"PerdureFunction": "work@2", "PerdureSession": "support"}
    assert found("ä" * 128) == {"PerdureFunction": "work@2"}  # as many bytes as none may have


def test_a_request_that_was_written_by_an_earlier_release_is_read() -> None:
    written = b'{"run_id":"run-1","function":"work@1","heartbeat_seconds":15.0}'
    assert document_of(request_value(REQUEST)) == written
    assert request_of(document_value(written)) == REQUEST


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.name.partition(".")[0])
def test_histories_of_earlier_releases_replay(path: Path) -> None:
    history = WorkflowHistory.from_json("agents/run", path.read_text("utf-8"))
    run(Replayer(workflows=[RunWorkflow]).replay_workflow(history))


def test_a_history_of_other_code_does_not_replay() -> None:
    (path,) = (path for path in HISTORIES if path.name.startswith("waits."))
    changed = path.read_text("utf-8").replace("perdure.drive.v1", "perdure.drive.v0")
    with pytest.raises(NondeterminismError):
        run(
            Replayer(workflows=[RunWorkflow]).replay_workflow(
                WorkflowHistory.from_json("agents/run", changed)
            )
        )
