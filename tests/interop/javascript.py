"""The JavaScript client in a process of its own, on the channel of a test."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from perdure.channels.memory import MemoryLog
from perdure.session.channel import Draft, Revision
from perdure.session.message import Action, WireMessage
from perdure.session.message_log import MessageLog
from tests.services import lacking

HERE: Final = Path(__file__).parent
_INSTALL_SECONDS: Final = 180.0
_FLAGS: Final = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock")
_ROUNDS: Final = 20


class JavaScriptError(Exception):
    """An error of the JavaScript client; `code` is that of the wire."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document.get("message"))
        self.code = document.get("code")
        self.status = document.get("statusCode")


def installed() -> Path:
    """Return a folder with the client; install it, once for these versions.

    Skips the test where that cannot be, as for any other service.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        lacking("needs Node.js with npm, such as Debian's packages nodejs and npm")
    wanted = (HERE / "package.json").read_bytes()
    name = f"perdure-interop-{os.getuid()}-{hashlib.sha256(wanted).hexdigest()[:12]}"
    folder = Path(tempfile.gettempdir()) / name
    if not folder.exists():
        with tempfile.TemporaryDirectory(prefix=f"{name}-") as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            (made / "package.json").write_bytes(wanted)
            try:
                subprocess.run(
                    [npm, "install", *_FLAGS],
                    cwd=made,
                    capture_output=True,
                    check=True,
                    timeout=_INSTALL_SECONDS,
                )
            except subprocess.SubprocessError as error:
                lacking(f"needs the packages of tests/interop from npm: {error}")
            try:
                made.rename(folder)
            except OSError:
                assert folder.exists()  # another test run was faster
    return folder


class JavaScript:
    """Calls into the JavaScript client, and answers what it asks of the channel."""

    def __init__(self, log: MemoryLog, process: asyncio.subprocess.Process) -> None:
        self.unhandled: list[Any] = []
        self._log = log
        self._logs: dict[str, MemoryLog] = {}
        self._process = process
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._attached: dict[str, _Attachment] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def session(
        self, kind: str, name: str, client_id: str, log: MemoryLog | None = None
    ) -> None:
        """Make and connect a session, `Client` or `Agent`, and keep it under a name."""
        key = f"{name}/{client_id}"
        self._logs[key] = log or self._log
        await self.call("make", "session", f"create{kind}Session", client_id, key, keep=name)
        await self.call(name, "connect")

    async def call(self, on: str, path: str, *arguments: Any, keep: str = "") -> Any:
        """Call a member of an object that is kept, and return or keep what it comes to."""
        named = {"as": keep} if keep else {}
        return await self._ask({"do": "call", "on": on, "path": path, "args": arguments, **named})

    async def get(self, on: str, path: str, *, keep: str = "") -> Any:
        """Return a member of an object that is kept, awaited if it is a promise."""
        named = {"as": keep} if keep else {}
        return await self._ask({"do": "get", "on": on, "path": path, **named})

    async def caught_up(self) -> None:
        """Return once every session was given all that is on the channel."""
        for _ in range(_ROUNDS):
            for attached in list(self._attached.values()):
                await attached.even()
            await self.get("codec", "kind")

    async def view(self, client: str) -> dict[str, Any]:
        """Return what a client sees once it has caught up and read history."""
        await self.caught_up()
        while await self.call(client, "view.hasOlder"):
            await self.call(client, "view.loadOlder", 50)
        runs = await self.call(client, "view.runs")
        members = ("runId", "clientId", "invocationId", "status", "error", "steps")
        told = [{name: run[name] for name in members if name in run} for run in runs]
        return {"messages": await self.call(client, "view.getMessages"), "runs": told}

    async def read(self) -> None:
        """Take what the process says, until it ends."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            document = json.loads(line)
            if "answer" in document:
                answer = self._answers.pop(document["answer"])
                if "error" in document:
                    answer.set_exception(JavaScriptError(document["error"]))
                else:
                    answer.set_result(document["result"])
            elif "unhandled" in document:
                self.unhandled.append(document["unhandled"])
            else:
                task = asyncio.create_task(self._serve(document))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

    async def close(self) -> None:
        """End the process."""
        for attached in self._attached.values():
            await attached.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    def _say(self, document: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(document).encode() + b"\n")

    async def _ask(self, document: dict[str, Any]) -> Any:
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        self._say({"ask": number, **document})
        return await self._answers[number]

    async def _serve(self, document: dict[str, Any]) -> None:
        """Do what a session asks of its channel; it is given its own messages before the answer."""
        key, given = document["channel"], document.get("with")
        log = self._logs[key]
        try:
            result = await _done(log, key.partition("/")[2], document["do"], given)
        except Exception as error:
            problem = {"code": 50000, "statusCode": 500, "message": repr(error)}
            self._say({"answer": document["ask"], "error": problem})
            raise
        if document["do"] == "attach":
            self._attached[key] = _Attachment(log, lambda m: self._deliver(key, m))
        elif document["do"] == "detach" and key in self._attached:
            await self._attached.pop(key).close()
        elif key in self._attached:
            await self._attached[key].even()
        self._say({"answer": document["ask"], "result": result})

    def _deliver(self, key: str, message: WireMessage) -> None:
        self._say({"deliver": key, "message": document_of(message)})


class _Attachment:
    """The deliveries of one session; the first append to a message it has not seen is whole."""

    def __init__(self, log: MemoryLog, deliver: Any) -> None:
        self._log = log
        self._deliver = deliver
        self._given = len(log.deliveries)
        self._state = MessageLog()
        for delivery in log.deliveries:
            self._state.receive(delivery)
        self._seen: set[str] = set()
        self._task = asyncio.create_task(self._pump())

    @property
    def is_even(self) -> bool:
        return self._given == len(self._log.deliveries)

    async def even(self) -> None:
        while not self.is_even:
            await asyncio.sleep(0)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _pump(self) -> None:
        async for delivery in self._log.behind(self._given):
            self._state.receive(delivery)
            whole = self._state.get(delivery.serial)
            late = delivery.action is Action.APPEND and delivery.serial not in self._seen
            self._seen.add(delivery.serial)
            self._deliver(whole if late and whole else delivery)
            self._given += 1


async def _done(log: MemoryLog, client_id: str, what: str, given: Any) -> Any:
    channel = log.channel(client_id)
    match what:
        case "publish":
            return {"serials": await channel.publish([_draft(message) for message in given])}
        case "append":
            return {"versionSerial": await channel.append(given["serial"], _revision(given))}
        case "update":
            return {"versionSerial": await channel.update(given["serial"], _revision(given))}
        case "history":
            page = await channel.history(given["before"], given["limit"])
            return {"items": [document_of(m) for m in page.messages], "more": page.more}
        case _:
            return None


def document_of(message: WireMessage) -> dict[str, Any]:
    """Return a message as a client of the wire is given it."""
    tiers = {"transport": message.transport or {}}
    ai = {**tiers, "codec": message.codec} if message.codec else tiers
    number = int(message.serial[:14])
    ephemeral = {"ephemeral": True} if message.ephemeral else {}
    document = {
        "action": message.action,
        "serial": message.serial,
        "version": {"serial": message.version, "timestamp": number},
        "name": message.name,
        "data": message.data,
        "clientId": message.client_id,
        "timestamp": number,
        "extras": {"ai": ai, **ephemeral},
    }
    return {name: value for name, value in document.items() if value is not None}


def _draft(document: dict[str, Any]) -> Draft:
    extras = document.get("extras", {})
    return Draft(
        message_id=uuid4().hex,
        name=document["name"],
        transport=extras["ai"]["transport"],
        codec=extras["ai"].get("codec", {}),
        data=document.get("data"),
        ephemeral=extras.get("ephemeral", False),
    )


def _revision(document: dict[str, Any]) -> Revision:
    ai = document["extras"]["ai"]
    return Revision(data=document["data"], transport=ai["transport"], codec=ai.get("codec", {}))


@asynccontextmanager
async def javascript(log: MemoryLog, folder: Path) -> AsyncIterator[JavaScript]:
    """Have the JavaScript client on a channel."""
    process = await asyncio.create_subprocess_exec(
        "node",
        "--input-type=module",
        "--eval",
        (HERE / "bridge.mjs").read_text("utf-8"),
        cwd=folder,  # where its imports are looked for
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    it = JavaScript(log, process)
    reading = asyncio.create_task(it.read())
    try:
        yield it
    finally:
        await it.close()
        await reading
