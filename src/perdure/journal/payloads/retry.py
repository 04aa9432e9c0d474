from __future__ import annotations

from typing import Final

from perdure.errors import InvalidRetryRequest, UnsupportedRetryWireVersion
from perdure.ids import is_identifier
from perdure.journal.payloads.bounds import RETRY
from perdure.journal.payloads.envelope import Envelope
from perdure.journal.payloads.exact import U64, Exact


class RetryRequest(Exact, frozen=True, kw_only=True):
    """The input of a retry delay: how long to wait, and what failed.

    `retry_number` counts from 1, `model_requests` is the number of the request that failed,
    `total_delay_ms` includes this delay, `error_name` is an identifier. The rest is what the
    provider said, if it did. There is no response: any is accepted, and ignored.
    """

    delay_ms: U64
    retry_number: U64
    model_requests: U64
    total_delay_ms: U64
    error_name: str
    retry_after_seconds: U64 | None = None
    rate_limit_remaining_requests: U64 | None = None
    rate_limit_remaining_tokens: U64 | None = None
    provider_request_id: str | None = None


_REQUEST: Final = Envelope(
    RetryRequest,
    "the retry request",
    InvalidRetryRequest,
    UnsupportedRetryWireVersion,
    bounds=RETRY,
)


def encode_retry_request(request: RetryRequest) -> bytes:
    """Return the document of a retry delay; raise `InvalidRetryRequest`."""
    _check(request)
    return _REQUEST.encode(request)


def parse_retry_request(data: bytes) -> RetryRequest:
    """Return the retry delay of a document.

    Raises `InvalidRetryRequest` or `UnsupportedRetryWireVersion`.
    """
    request = _REQUEST.parse(data)
    _check(request)
    return request


def _check(request: RetryRequest) -> None:
    if not is_identifier(request.error_name):
        raise InvalidRetryRequest(
            f"the error name {request.error_name[:200]!r} of the retry request is no identifier"
        )
