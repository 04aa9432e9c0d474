from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from temporalio.client import Client
from temporalio.service import TLSConfig

from perdure.sidecar.config import SidecarConfig
from perdure.sidecar.handling import performers
from perdure.sidecar.metrics import Metrics
from perdure.sidecar.operations import TemporalAnswers
from perdure.sidecar.request import Deployment
from perdure.sidecar.sidecar import Sidecar
from perdure.sidecar.worker import sidecar_worker

_LEAVING_SECONDS: Final = 0.5


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets of a sidecar, which stay in its process; None for those it has not.

    `token` is what those who ask send as `authorization: Bearer TOKEN`, the rest is for Temporal.
    """

    token: str | None = None
    api_key: str | None = None
    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None

    def __repr__(self) -> str:
        return "Credentials(...)"


@asynccontextmanager
async def sidecar(
    config: SidecarConfig,
    credentials: Credentials,
    *,
    load: Callable[[str], Callable[..., Any]],
    environment: Mapping[str, str],
) -> AsyncGenerator[Sidecar]:
    """Perform the operations of a task queue, and yield what serves requests for them.

    `load` returns what is written as module:function, and `environment` is what commands get.
    Raises `ConnectionError` where Temporal cannot be reached.
    """
    performing = performers(config, load=load, environment=environment)
    metrics = Metrics()
    try:
        client = await _connected(config, credentials)
        async with sidecar_worker(client, config, performing, metrics):
            yield Sidecar(
                TemporalAnswers(client, config.limits, max_record_bytes=config.max_record_bytes),
                Deployment(
                    config.temporal.namespace,
                    config.task_queue,
                    frozenset(performing),
                    config.limits,
                ),
                authorization=authorization(credentials.token),
                max_request_bytes=config.max_request_bytes,
                metrics=metrics,
            )
    finally:
        # A thread of the SDK that still holds something of the interpreter would abort its end.
        await asyncio.sleep(_LEAVING_SECONDS)


def authorization(token: str | None) -> str | None:
    """Return the header that a token is sent in; the token may be written with its scheme."""
    return None if token is None else f"Bearer {token.removeprefix('Bearer ').strip()}"


async def _connected(config: SidecarConfig, credentials: Credentials) -> Client:
    temporal = config.temporal
    files = TLSConfig(
        server_root_ca_cert=credentials.ca,
        domain=temporal.server_name or None,
        client_cert=credentials.certificate,
        client_private_key=credentials.key,
    )
    secure = temporal.tls or bool(
        credentials.ca or credentials.certificate or credentials.api_key or temporal.server_name
    )
    try:
        return await Client.connect(
            temporal.address,
            namespace=temporal.namespace,
            api_key=credentials.api_key,
            tls=files if secure else False,
        )
    except RuntimeError as error:
        raise ConnectionError(f"Temporal at {temporal.address} does not answer: {error}") from error
