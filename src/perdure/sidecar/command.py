from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from perdure.sidecar.failures import HandlerFailed
from perdure.wording import printable

_STDERR_BYTES: Final = 65_536
_SHOWN: Final = 2_000
_CHUNK: Final = 65_536
_LEFT_SECONDS: Final = 2.0
"""How long a command that has ended is still read from, where something else holds its pipes."""


class _TooMuch(Exception):
    """A command wrote more than it may."""


class _Pipes(subprocess.SubprocessStreamProtocol):
    """The pipes of a command, which end with it, whoever has inherited them."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._process = transport

    def process_exited(self) -> None:
        """Kill what the command leaves behind, and read what it had printed."""
        super().process_exited()
        _kill_group(self._process)
        # What has left its session lives on, and is not waited for.
        asyncio.get_running_loop().call_later(_LEFT_SECONDS, self._process.close)


class Command:
    """A program that is given an invocation on its standard input and prints the record.

    It runs in a session of its own, and whatever is left of that is killed when it has ended, has
    had its time, or is not waited for any more. `environment` is all that it gets of one.
    """

    def __init__(
        self, words: Sequence[str], *, environment: Mapping[str, str], most_bytes: int
    ) -> None:
        self._words = tuple(words)
        self._environment = dict(environment)
        self._most_bytes = most_bytes

    async def __call__(self, line: bytes, limit_seconds: float) -> bytes:
        """Return what the command prints for a line. Raises `HandlerFailed`."""
        process, transport = await self._start()
        try:
            async with asyncio.timeout(limit_seconds):
                out, said = await self._talk(process, line)
                code = await process.wait()
        except _TooMuch as error:
            raise HandlerFailed(
                "WorkerOutputTooLarge",
                f"{self._words[0]} printed more than {self._most_bytes} bytes",
                permanent=True,
            ) from error
        except TimeoutError as error:
            raise HandlerFailed(
                "WorkerTimedOut", f"{self._words[0]} took more than {limit_seconds:g} seconds"
            ) from error
        finally:
            await _end(process, transport)
        if code:
            how = f"ended with code {code}" if code > 0 else f"was killed by signal {-code}"
            raise HandlerFailed("WorkerFailed", f"{self._words[0]} {how}: {_shown(said)}")
        return out

    async def _start(self) -> tuple[subprocess.Process, asyncio.SubprocessTransport]:
        loop = asyncio.get_running_loop()
        try:
            # As `create_subprocess_exec` does, which keeps the transport to itself: that has to be
            # closed where a command is not read to the end of what it prints.
            transport, protocol = await loop.subprocess_exec(
                lambda: _Pipes(limit=_CHUNK, loop=loop),
                *self._words,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            why = error.strerror or error
            raise HandlerFailed("WorkerNotStarted", f"{self._words[0]}: {why}") from error
        return subprocess.Process(transport, protocol, loop), transport

    async def _talk(self, process: subprocess.Process, line: bytes) -> tuple[bytes, bytes]:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        # They go on side by side: a command may print before it has read all, or read nothing.
        writing = asyncio.create_task(_write(process.stdin, line))
        listening = asyncio.create_task(_read_some(process.stderr, _STDERR_BYTES))
        try:
            out = await _read(process.stdout, self._most_bytes)
            await writing
            return out, await listening
        finally:
            for task in (writing, listening):
                task.cancel()
            await asyncio.gather(writing, listening, return_exceptions=True)


async def _write(stdin: asyncio.StreamWriter, line: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stdin.write(line)
        await stdin.drain()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stdin.close()
        await stdin.wait_closed()


async def _read(stream: asyncio.StreamReader, most: int) -> bytes:
    found = bytearray()
    while chunk := await stream.read(_CHUNK):
        found += chunk
        if len(found) > most:
            raise _TooMuch
    return bytes(found)


async def _read_some(stream: asyncio.StreamReader, most: int) -> bytes:
    """Read to the end, so that nobody has to wait, and return the beginning."""
    found = bytearray()
    while chunk := await stream.read(_CHUNK):
        found += chunk[: most - len(found)]
    return bytes(found)


async def _end(process: subprocess.Process, transport: asyncio.SubprocessTransport) -> None:
    if transport.get_returncode() is None:
        _kill_group(transport)
    transport.close()
    await asyncio.shield(process.wait())


def _kill_group(transport: asyncio.SubprocessTransport) -> None:
    # The group outlives its leader: what that left behind is killed with it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(transport.get_pid(), signal.SIGKILL)


def _shown(said: bytes) -> str:
    text = printable(said.decode(errors="replace").strip())
    return text[-_SHOWN:] or "it said nothing on stderr"
