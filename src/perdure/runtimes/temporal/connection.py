from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.errors import InvalidOptions, RuntimeUnreachable
from perdure.observe import log
from perdure.runtimes.temporal.address import Address
from perdure.runtimes.temporal.search import make_searchable

Connect = Callable[[], Awaitable[Client]]

_CONNECT_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 5.0


class Connection:
    """The client of a server, from when it is first asked for.

    `connect` returns the client; None for one that the address tells enough for. `searchable` is
    whether runs have their search attributes there.
    """

    def __init__(self, address: Address, connect: Connect | None) -> None:
        self.searchable = False
        self._address = address
        self._connect = connect
        self._found: Client | None = None
        self._connecting = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._failure: RuntimeUnreachable | None = None
        self._again_at = 0.0

    async def client(self) -> Client:
        """Return the client; raises `RuntimeUnreachable` where there cannot be one now."""
        async with self._connecting:
            if self._found is None:
                if self._failure is not None and self._loop.time() < self._again_at:
                    raise self._failure  # what who came before has waited for
                try:
                    self._found = await self._connected()
                except RuntimeUnreachable as error:
                    self._failure, self._again_at = error, self._loop.time() + _AGAIN_SECONDS
                    raise
                self.searchable = await make_searchable(self._found)
        return self._found

    async def check_namespace(self) -> None:
        """Raise `RuntimeUnreachable` unless the namespace is there, and may be used."""
        client = await self.client()
        try:
            await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=client.namespace)
            )
        except RPCError as error:
            raise RuntimeUnreachable(
                f"the namespace {client.namespace!r} at {self._address.target} cannot be used:"
                f" {error}; temporal operator namespace create --address {self._address.target}"
                f" --namespace {client.namespace} makes one"
            ) from error

    def hide(self, error: RPCError) -> None:
        """Go on without search attributes, which the namespace has not any more."""
        log.warning("runs are not searched for any more: %s", error)
        self.searchable = False

    async def _connected(self) -> Client:
        address = self._address
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                if self._connect is not None:
                    return self._checked(await self._connect())
                return await Client.connect(
                    address.target,
                    namespace=address.namespace,
                    tls=address.tls,
                    connect_timeout=timedelta(seconds=_CONNECT_SECONDS),
                )
        except (RPCError, RuntimeError, OSError, TimeoutError) as error:
            tls = "with" if address.tls else "without"
            raise RuntimeUnreachable(
                f"no Temporal server answers at {address.target} {tls} TLS:"
                f" {error or 'it took too long'}"
            ) from error

    def _checked(self, client: object) -> Client:
        if not isinstance(client, Client):
            raise InvalidOptions(f"temporal= connects a temporalio.client.Client, not {client!r}")
        if client.namespace != self._address.namespace:
            raise InvalidOptions(
                f"the client that temporal= connects is of the namespace {client.namespace!r}, and"
                f" the URL of {self._address.namespace!r}: name the same in both"
            )
        return client
