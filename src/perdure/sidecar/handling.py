from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from perdure.attempt import make_attempt
from perdure.errors import InvalidFunction, JournalError
from perdure.journal.handlers import Handlers, Worker
from perdure.journal.invocation import Invocation, OperationKind, encode_invocation
from perdure.journal.record import Record, encode_record, parse_record
from perdure.sidecar.command import Command
from perdure.sidecar.config import SidecarConfig
from perdure.sidecar.failures import HandlerFailed
from perdure.wording import named, text_of

_log: Final = logging.getLogger("perdure.sidecar")

Perform: TypeAlias = Callable[[Invocation, float], Awaitable[bytes]]
"""Performs an invocation within so many seconds, and returns the document of its record."""

Key: TypeAlias = tuple[OperationKind, str]


def performers(
    config: SidecarConfig,
    *,
    load: Callable[[str], Callable[..., Any]],
    environment: Mapping[str, str],
) -> dict[Key, Perform]:
    """Return what performs each kind and handler id of a file.

    `load` returns the function that is written as module:function; `environment` is what commands
    get. Raises `InvalidFunction`.
    """
    found: dict[Key, Perform] = {}
    functions = Handlers()
    for handler in config.handlers:
        key = (handler.kind, handler.id)
        if handler.command:
            most = config.max_record_bytes
            command = Command(handler.command, environment=environment, most_bytes=most)
            perform = _by_command(command)
        else:
            function = load(handler.function)
            if not inspect.iscoroutinefunction(function):
                raise InvalidFunction(f"{named(function)} is no `async def`, as handlers are")
            functions.register(*key, function)
            perform = _by_function(functions.lookup(*key))
        found[key] = _within(perform, handler.time_limit_seconds)
    return found


def checked(invocation: Invocation, printed: bytes) -> bytes:
    """Return the document of a record as it is, if it is the record of an invocation.

    Raises `HandlerFailed`, permanently.
    """
    try:
        record = parse_record(printed)
    except JournalError as error:
        name = type(error).__name__
        raise HandlerFailed(
            name, f"what came back is no record: {error}", permanent=True
        ) from error
    if record.invocation != invocation:
        raise HandlerFailed(
            "RuntimeRecordMismatch",
            f"the record is of {record.invocation.stable_key}, or of another input or handler, and"
            f" {invocation.stable_key} was asked for",
            permanent=True,
        )
    return printed


def _by_command(command: Command) -> Perform:
    async def perform(invocation: Invocation, seconds: float) -> bytes:
        printed = await command(encode_invocation(invocation) + b"\n", seconds)
        return checked(invocation, printed)

    return perform


def _by_function(worker: Worker) -> Perform:
    async def perform(invocation: Invocation, seconds: float) -> bytes:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                attempt = await make_attempt(partial(worker, invocation))
        except TimeoutError as error:
            raise HandlerFailed("WorkerTimedOut", f"it took more than {seconds:g} s") from error
        if (raised := attempt.error) is not None:
            _log.warning("%s failed: %s", invocation.stable_key, text_of(raised), exc_info=raised)
        try:
            return encode_record(Record(invocation, attempt.outcome))
        except JournalError as error:
            raise HandlerFailed(type(error).__name__, str(error), permanent=True) from error

    return perform


def _within(perform: Perform, limit_seconds: float | None) -> Perform:
    async def limited(invocation: Invocation, seconds: float) -> bytes:
        return await perform(invocation, min(seconds, limit_seconds or seconds))

    return limited
