"""The examples of `guard`, run as they are: in a script, in a Celery worker, as an activity."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import logging
import runpy
import sys
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery.result import AsyncResult
from celery.worker.request import Request
from kombu.transport.memory import Transport
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure.effects.identity import OperationIdentity
from perdure.effects.support import EffectPolicy
from perdure.errors import EffectInProgress, EffectNotSent, EffectRejected
from tests.harness import run

EXAMPLES = Path(__file__).parents[2] / "examples"


class Provider:
    """Charges once for each key that it has not seen, and then does what a test said."""

    def __init__(self, *ends: Any) -> None:
        self.ends = list(ends)
        self.calls: list[OperationIdentity] = []
        self.reached = asyncio.Event()

    @property
    def charged(self) -> int:
        return len({identity.operation_key for identity in self.calls})

    def charge(self, identity: OperationIdentity) -> dict[str, str]:
        self.calls.append(identity)
        end = self.ends.pop(0) if self.ends else None
        if isinstance(end, BaseException):
            raise end
        return {"receipt": "r-1"}

    async def charge_async(self, identity: OperationIdentity) -> dict[str, str]:
        if self.ends and isinstance(self.ends[0], asyncio.Event):
            self.reached.set()
            await self.ends.pop(0).wait()
        return self.charge(identity)


@pytest.fixture
def example(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """Import an example as its users do, with its receipts in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield importlib.import_module(request.param)
    del sys.modules[request.param]
    # A Celery worker makes logging its own.
    root.setLevel(level)
    root.handlers[:] = handlers


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("example", [name], indirect=True)


def test_the_script_charges_once_however_often_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        runpy.run_path(str(EXAMPLES / "guard_script.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert (said.count("charging invoice-2041"), said.count("paid: r-invoice-2041")) == (1, 2)


@of("guard_celery")
def test_the_task_charges_once_though_its_message_is_delivered_again(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The provider's first reply is lost, and so is the first acknowledgement of the message.
    provider = Provider(ConnectionResetError("gone"))
    monkeypatch.setattr(example, "charge", provider.charge)
    delivered: list[str] = []
    acknowledge = Request.acknowledge

    def lose(request: Request) -> None:
        delivered.append(request.id)
        if len(delivered) == 1:
            request.reject(requeue=True)
        else:
            acknowledge(request)

    monkeypatch.setattr(Request, "acknowledge", lose)
    example.app.conf.broker_connection_retry_on_startup = False
    example.app.conf.broker_transport_options = {"polling_interval": 0.01}
    # Both look again after half a second and more, and the worker also before it ends.
    monkeypatch.setattr(AsyncResult, "get", partialmethod(AsyncResult.get, interval=0.01))
    drain = Transport.drain_events
    monkeypatch.setattr(Transport, "drain_events", lambda *known, timeout: drain(*known, 0.02))
    example.main()
    assert capsys.readouterr().out.count("paid: r-1") == 2
    first, again, second = delivered
    assert first == again != second
    assert (provider.charged, len(provider.calls)) == (1, 2)


@of("guard_celery")
def test_the_task_is_tried_again_only_where_that_may_help(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Provider(EffectNotSent("no route"), None, EffectRejected("no funds"))
    monkeypatch.setattr(example, "charge", provider.charge)
    with example.store:
        assert example.pay.apply(["invoice-1", 5]).get() == "r-1"
        assert len(provider.calls) == 2
        with pytest.raises(EffectRejected):
            example.pay.apply(["invoice-2", 5]).get()
        assert len(provider.calls) == 3


def attempt(number: int) -> ActivityEnvironment:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=number)
    return environment


@of("guard_temporal")
def test_the_activity_charges_once_though_its_reply_is_lost(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Provider()
    monkeypatch.setattr(example, "charge", provider.charge_async)

    async def main() -> None:
        async with example.store:
            for number in (1, 2):
                assert await attempt(number).run(example.pay, 1999) == "r-1"

    run(main())
    assert len(provider.calls) == 1


@of("guard_temporal")
def test_the_activity_goes_on_after_an_attempt_that_was_cut_short(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Provider(asyncio.Event())
    monkeypatch.setattr(example, "charge", provider.charge_async)

    async def main() -> None:
        async with example.store:
            first = asyncio.create_task(attempt(1).run(example.pay, 1999))
            await provider.reached.wait()
            with pytest.raises(EffectInProgress):  # Temporal tries again
                await attempt(2).run(example.pay, 1999)
            first.cancel()
            await asyncio.wait([first])
            assert await attempt(3).run(example.pay, 1999) == "r-1"

    run(main())
    assert provider.charged == 1


@of("guard_temporal")
@pytest.mark.parametrize(
    ("end", "name"),
    [(EffectRejected("no"), "EffectRejected"), (OSError("gone"), "EffectAmbiguous")],
)
def test_the_activity_is_not_tried_again_where_that_is_no_help(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, end: Exception, name: str
) -> None:
    provider = Provider(end)
    monkeypatch.setattr(example, "charge", provider.charge_async)
    monkeypatch.setattr(example, "policy", EffectPolicy())

    async def main() -> None:
        async with example.store:
            with pytest.raises(ApplicationError) as caught:
                await attempt(1).run(example.pay, 1999)
            assert (caught.value.type, caught.value.non_retryable) == (name, True)

    run(main())
