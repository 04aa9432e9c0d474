"""What the `ably` client talks to, on the loopback: its websocket and history on one port."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlsplit

import msgpack
from ably import AblyRealtime
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

ACK, NACK, CONNECTED, DISCONNECTED, CLOSE, CLOSED, ERROR = 1, 2, 4, 6, 7, 8, 9
ATTACH, ATTACHED, DETACH, DETACHED, MESSAGE = 10, 11, 12, 13, 15
CREATE, UPDATE, APPEND = 0, 1, 5
RESUMED = 1 << 2

Json = dict[str, Any]


class Refusal(Exception):
    """What the service answers instead of doing something."""

    def __init__(self, code: int, status: int, message: str = "no") -> None:
        self.error = {"code": code, "statusCode": status, "message": message}


class Log:
    """One channel: its messages as they stand, and every delivery."""

    def __init__(self) -> None:
        self.stored: dict[str, Json] = {}
        self.deliveries: list[Json] = []
        self.ids: dict[str, str] = {}

    def write(self, sent: Json, client_id: str | None) -> str:
        """Do what a message says; return the serial or version of that."""
        if sent.get("action", CREATE) == CREATE:
            return self._create(sent, client_id)
        message = self.stored.get(sent["serial"])
        if message is None:
            raise Refusal(40400, 404, "there is no such message")
        told = sent.get("version", {})
        version = {"clientId": client_id, **told, "serial": self._next()}
        append = sent["action"] == APPEND
        kept = {"name": message.get("name"), "clientId": message.get("clientId")}
        data = message.get("data", "") + sent["data"] if append else sent["data"]
        contents = {"data": data, "extras": sent["extras"], "version": version}
        self.stored[sent["serial"]] = {**message, **contents, "action": UPDATE}
        delivery = {**sent, "version": version, "timestamp": message["timestamp"]}
        self.deliveries.append(
            {**delivery, "clientId": kept["clientId"]} if append else {**delivery, **kept}
        )
        return version["serial"]

    def page(self, before: str | None, limit: int) -> tuple[list[Json], str | None]:
        """Return messages, newest first, and what the next page comes before."""
        older = sorted(s for s in self.stored if before is None or s < before)
        found = older[-limit:][::-1]
        return [self.stored[serial] for serial in found], found[-1] if len(older) > limit else None

    def _create(self, sent: Json, client_id: str | None) -> str:
        if sent.get("id") in self.ids:
            return self.ids[sent["id"]]
        serial = self._next()
        if "id" in sent:
            self.ids[sent["id"]] = serial
        own = {"serial": serial, "version": {"serial": serial}, "action": CREATE}
        message = {"clientId": client_id, **sent, **own, "timestamp": len(self.deliveries) + 1}
        self.deliveries.append(message)
        if not sent["extras"].get("ephemeral"):
            self.stored[serial] = message
        return serial

    def _next(self) -> str:
        return f"{len(self.deliveries) + 1:014}-000@here:000"


class Peer:
    """One websocket of a client, and what it has been sent of each channel."""

    def __init__(self, server: RealtimeServer, socket: ServerConnection) -> None:
        query = parse_qs(urlsplit(socket.request.path).query) if socket.request else {}
        self.query = {name: values[0] for name, values in query.items()}
        self.binary = self.query.get("format") == "msgpack"
        self.key = ""
        self.sent: dict[str, int] = {}
        self._known: dict[str, set[str]] = {}
        self._server = server
        self.socket = socket

    async def send(self, frame: Json) -> None:
        await self.socket.send(msgpack.packb(frame) if self.binary else json.dumps(frame))

    async def connected(self) -> None:
        details = {"connectionKey": self.key, "clientId": self.query.get("clientId")}
        hello = {"action": CONNECTED, "connectionId": f"of-{self.key}"}
        await self.send({**hello, "connectionDetails": details})

    async def catch_up(self, name: str) -> None:
        """Send the deliveries of a channel that this client has not had."""
        log = self._server.log(name)
        while name in self.sent and self.sent[name] < len(log.deliveries):
            index = self.sent[name]
            self.sent[name] = index + 1
            await self.send(
                {
                    "action": MESSAGE,
                    "channel": name,
                    "id": f"frame-{index}",
                    "channelSerial": str(index + 1),
                    "messages": [self._first_whole(name, log.deliveries[index])],
                }
            )

    def _first_whole(self, name: str, delivery: Json) -> Json:
        """Return an append whole where it is the first that this attachment sees of its message."""
        known = self._known.setdefault(name, set())
        first = delivery["serial"] not in known
        known.add(delivery["serial"])
        if delivery["action"] != APPEND or not first or not self._server.whole_first:
            return delivery
        stored = self._server.log(name).stored[delivery["serial"]]
        return stored if stored["version"] == delivery["version"] else delivery

    async def attach(self, frame: Json) -> None:
        name = frame["channel"]
        if name in self._server.refused:
            await self.send(
                {"action": ERROR, "channel": name, "error": self._server.refused[name].error}
            )
            return
        last = frame.get("channelSerial") if self._server.continuous else None
        self.sent[name] = int(last) if last else len(self._server.log(name).deliveries)
        self._known[name] = set(self._known.get(name, ())) if last else set()
        await self.attached(name, resumed=last is not None)
        await self.catch_up(name)

    async def attached(self, name: str, *, resumed: bool) -> None:
        flags = RESUMED if resumed else 0
        serial = str(self.sent[name])
        await self.send(
            {"action": ATTACHED, "channel": name, "flags": flags, "channelSerial": serial}
        )


class RealtimeServer:
    """What tests change of it: what is planned for the next writes, and whether it forgets."""

    def __init__(self) -> None:
        self.logs: dict[str, Log] = {}
        self.peers: list[Peer] = []
        self.frames: list[Json] = []
        """Every frame of clients, of all connections."""
        self.planned: list[Refusal | str] = []
        """What happens to the next writes: a refusal, or the connection is `lost` before one is
        done, `cut` after it, or that and `forgotten`; or one is never answered: `mute`."""
        self.refused: dict[str, Refusal] = {}
        """The channels that nobody may attach to, or read the history of."""
        self.continuous = True
        """Whether channels go on where they were."""
        self.whole_first = True
        """Whether the first append that an attachment sees of a message is delivered whole."""
        self.connections = 0
        self.reads = 0
        self._answers: dict[tuple[str, int], Json] = {}
        self._forgotten: set[str] = set()
        self._server: Server | None = None

    def log(self, name: str) -> Log:
        return self.logs.setdefault(name, Log())

    @property
    def endpoint(self) -> str:
        """A host with a slash, behind which the client may put the port that it adds for REST."""
        assert self._server is not None
        return f"127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}/"

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[RealtimeServer]:
        async with serve(self._connected, "127.0.0.1", 0, process_request=self._http) as server:
            self._server = server
            yield self

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncGenerator[AblyRealtime]:
        """Connect the real client; it tries again at once, and gives up never."""
        client = AblyRealtime(
            token="token",
            endpoint=self.endpoint,
            tls=False,
            disconnected_retry_timeout=1,
            channel_retry_timeout=1,
            **options,
        )
        try:
            await client.connection.once_async("connected")
            yield client
        finally:
            await client.close()

    async def drop(self) -> None:
        """Lose all connections."""
        for peer in list(self.peers):
            await peer.socket.close(1011)

    async def stop(self) -> None:
        """Lose all connections, and take no more."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def tell(self, frame: Json) -> None:
        for peer in list(self.peers):
            await peer.send(frame)

    async def _connected(self, socket: ServerConnection) -> None:
        peer = Peer(self, socket)
        resumed = peer.query.get("resume")
        resumed = None if resumed in self._forgotten else resumed
        self.connections += not resumed
        peer.key = resumed or f"key-{self.connections}"
        self.peers.append(peer)
        try:
            await peer.connected()
            async for raw in socket:
                frame = msgpack.unpackb(raw) if isinstance(raw, bytes) else json.loads(raw)
                self.frames.append(frame)
                await self._take(peer, frame)
        except ConnectionClosed:
            pass
        finally:
            self.peers.remove(peer)

    async def _take(self, peer: Peer, frame: Json) -> None:
        match frame["action"]:
            case 17:
                await peer.connected()
            case 10:
                await peer.attach(frame)
            case 12:
                peer.sent.pop(frame["channel"], None)
                await peer.send({"action": DETACHED, "channel": frame["channel"]})
            case 7:
                await peer.send({"action": CLOSED})
            case 15:
                await self._write(peer, frame)
            case _:
                pass

    async def _write(self, peer: Peer, frame: Json) -> None:
        planned = self.planned.pop(0) if self.planned else ""
        if planned == "lost":
            await peer.socket.close(1011)
            return
        if planned == "mute":
            return
        # A client that comes back on its old connection sends what was not answered again.
        place = (peer.key, frame["msgSerial"])
        if place not in self._answers:
            self._answers[place] = self._answer(peer, frame, planned)
        if planned == "forgotten":
            self._forgotten.add(peer.key)
        if planned in ("cut", "forgotten"):
            await peer.socket.close(1011)
            return
        await peer.send(self._answers[place])
        for other in list(self.peers):
            await other.catch_up(frame["channel"])

    def _answer(self, peer: Peer, frame: Json, planned: Refusal | str) -> Json:
        answer = {"msgSerial": frame["msgSerial"], "count": 1}
        try:
            if isinstance(planned, Refusal):
                raise planned
            log, by = self.log(frame["channel"]), peer.query.get("clientId")
            serials = [log.write(sent, by) for sent in frame["messages"]]
        except Refusal as refusal:
            return {"action": NACK, **answer, "error": refusal.error}
        return {"action": ACK, **answer, "res": [{"serials": serials}]}

    def _http(self, _: ServerConnection, request: Request) -> Response | None:
        """Answer for history; None leads on to the websocket."""
        if "Upgrade" in request.headers:
            return None
        self.reads += 1
        url = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        name = unquote_plus(url.path.split("/")[2])
        if refusal := self.refused.get(name):
            return _response(request, refusal.error["statusCode"], {"error": refusal.error})
        items, before = self.log(name).page(query.get("before"), int(query.get("limit", 100)))
        following = f'<./messages?limit={query.get("limit", 100)}&before={before}>; rel="next"'
        return _response(request, 200, items, **({"Link": following} if before else {}))


def _response(request: Request, status: int, body: Any, **headers: str) -> Response:
    binary = "msgpack" in request.headers.get("Accept", "")
    content = msgpack.packb(body) if binary else json.dumps(body).encode()
    kind = "application/x-msgpack" if binary else "application/json"
    told = {"Content-Type": kind, "Content-Length": str(len(content)), "Connection": "close"}
    return Response(status, HTTPStatus(status).phrase, Headers({**told, **headers}), content)
