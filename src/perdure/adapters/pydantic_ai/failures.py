from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import msgspec
from pydantic import ValidationError
from pydantic_ai.exceptions import (
    AgentRunError,
    ApprovalRequired,
    CallDeferred,
    FallbackExceptionGroup,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelRateLimitError,
    ModelRetry,
    ModelServerError,
    ModelUnavailableError,
    RetryModelRequest,
    ToolFailed,
    UserError,
)
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse
from pydantic_core import PydanticSerializationError, to_jsonable_python

from perdure.errors import EffectAmbiguous, EffectNotSent, OperationFailed, PerdureError
from perdure.ids import error_name_of
from perdure.retry import RetryPolicy, retryable

_RebuildableError: Final = (
    AgentRunError,
    UserError,
    ModelRetry,
    ToolFailed,
    ApprovalRequired,
    CallDeferred,
    RetryModelRequest,
)
"""The roots of what agents react to, which therefore comes back as itself on a replay."""

_TRANSIENT: Final = (
    ModelRateLimitError,
    ModelUnavailableError,
    ModelServerError,
    ModelConnectionError,
)
_TRANSIENT_STATUSES: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class UnitFailed(OperationFailed):
    """What went wrong in an operation, in the form in which it is journalled.

    `error` is the exception itself, for a retry policy to look at.
    """

    def __init__(self, key: str, error: Exception) -> None:
        failed = error if isinstance(error, OperationFailed) else None
        kind = type(error)
        name = kind.__qualname__
        if kind.__module__ != "builtins":
            name = f"{kind.__module__}.{name}"
        super().__init__(
            key,
            code=failed.code if failed else error_name_of(kind),
            message=failed.message if failed else _text(error),
            type_name=failed.type_name if failed else name,
            retryable=is_transient(error),
            data=failed.data if failed else _written(error),
        )
        self.error = error
        # What its server asked for is read from these.
        self.retry_after: Any = getattr(error, "retry_after", None)
        self.response: Any = getattr(error, "response", None)
        self.headers: Any = getattr(error, "headers", None)


def raised_from(failure: OperationFailed) -> Exception:
    """Return the exception that a recorded failure is raised as, on every execution alike.

    An error of Pydantic AI comes back as itself, because agents react to those: a fallback to
    another model, a retry, a limit. Any other is the `OperationFailed` that was given.
    """
    data = failure.data
    if not isinstance(data, dict):
        return failure
    written = cast("dict[str, Any]", data)
    error = _rebuilt(written.get("error")) or failure
    for name, response in written.get("responses", {}).items():
        setattr(error, name, ModelMessagesTypeAdapter.validate_python([response])[0])
    return error


def unknown_of(failure: OperationFailed) -> dict[str, Any] | None:
    """Return what a model is told of an effect of which nobody knows, or None for other failures.

    Only the policy `tell` has that recorded, as a failure with the receipt's key.
    """
    data = failure.data
    if failure.code != EffectAmbiguous.__name__ or not isinstance(data, dict):
        return None
    told = cast("dict[str, Any]", data)
    return {
        "outcome": "unknown",
        "operation_key": told.get("operation_key"),
        "why": told.get("why"),
        "advice": "do not repeat it: it may have been done. Say that its outcome is not known",
    }


def is_transient(error: Exception) -> bool:
    """Return whether the same request may well succeed a little later.

    A stream that broke off after it had given something is not asked for again: its beginning has
    been seen.
    """
    if isinstance(error, OperationFailed):
        return error.retryable
    return not _responses_of(error) and _passes(error)


def _passes(error: Exception) -> bool:
    if isinstance(error, ModelHTTPError) and error.status_code in _TRANSIENT_STATUSES:
        return True
    return isinstance(error, _TRANSIENT)


def for_units(
    policy: RetryPolicy, *, of_model: bool, replaces: Callable[[], bool] = lambda: False
) -> RetryPolicy:
    """Return a policy that looks at what went wrong in an operation instead of at `UnitFailed`.

    What steers the agent is never tried again, nor is what the policy does not allow. Unless the
    policy says otherwise, a model is asked again only after a passing trouble. `replaces` says
    whether a second stream takes the place of the first wherever that was seen.
    """

    def may_retry(failed: Exception) -> bool:
        error = failed.error if isinstance(failed, UnitFailed) else failed
        if isinstance(error, EffectNotSent):
            return policy.allows(error, 0)
        if _steers(error) or (_responses_of(error) and not replaces()):
            return False
        if of_model and policy.retry_on is retryable:
            return _passes(error)
        return policy.allows(error, 0)

    return msgspec.structs.replace(policy, retry_on=may_retry)


def _steers(error: Exception) -> bool:
    if isinstance(error, ModelAPIError):
        return False
    return isinstance(
        error,
        (*_RebuildableError, PerdureError, ValidationError, PydanticSerializationError),
    )


# --- written and rebuilt -------------------------------------------------------------------------


def _written(error: Exception) -> dict[str, Any] | None:
    written: dict[str, Any] = {}
    if (shape := _shape(error)) is not None:
        written["error"] = shape
    if responses := _responses_of(error):
        written["responses"] = {
            name: ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]
            for name, response in responses.items()
        }
    return written or None


def _shape(error: BaseException) -> dict[str, Any] | None:
    """Return what an error can be rebuilt from, or None when it would not come back the same."""
    if isinstance(error, FallbackExceptionGroup):
        shapes = [_shape(inner) for inner in cast("tuple[BaseException, ...]", error.exceptions)]
        return None if None in shapes else {"group": error.message, "errors": shapes}
    if not isinstance(error, _RebuildableError):
        return None
    args, state = _reduced(error)
    kind = type(error)
    shape = {
        "module": kind.__module__,
        "name": kind.__qualname__,
        "http": isinstance(error, ModelHTTPError),
        "args": to_jsonable_python(args, fallback=str, inf_nan_mode="null"),
        "state": to_jsonable_python(state, fallback=str, inf_nan_mode="null"),
    }
    twin = _rebuilt(shape)
    return shape if type(twin) is kind and str(twin) == str(error) else None


def _reduced(error: Exception) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments and the public state that pickling an error would keep."""
    # A categorised HTTP error pickles as its category, but it is made as any HTTP error is.
    reduced: Any = (
        ModelHTTPError.__reduce__(error)
        if isinstance(error, ModelHTTPError)
        else error.__reduce__()
    )
    state: dict[str, Any] = (reduced[2] if len(reduced) > 2 else None) or {}
    return list(reduced[1]), {
        name: value for name, value in state.items() if not name.startswith("_")
    }


def _rebuilt(shape: dict[str, Any] | None) -> Exception | None:
    if shape is None:
        return None
    if "group" in shape:
        errors = [_rebuilt(inner) for inner in shape["errors"]]
        known = [error for error in errors if error is not None]
        return FallbackExceptionGroup(shape["group"], known) if len(known) == len(errors) else None
    kind = _kind_of(shape)
    try:
        error = kind(*shape["args"]) if kind is not None else None
        if error is not None and shape["state"]:
            cast("Any", error).__setstate__(shape["state"])
    except Exception:  # noqa: BLE001 - a constructor that wants something else cannot be served
        return None
    return error


def _kind_of(shape: dict[str, Any]) -> type[Exception] | None:
    """Return the loaded class of a name: what is recorded never decides what is imported."""
    for root in _RebuildableError:
        for kind in _subclasses(root):
            # An HTTP error with a category bears the category's name.
            if (
                kind.__qualname__ == shape["name"]
                and kind.__module__ == shape["module"]
                and issubclass(kind, ModelHTTPError) == shape["http"]
            ):
                return kind
    return None


def _subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _subclasses(inner)


def _responses_of(error: Exception) -> dict[str, ModelResponse]:
    """Return what a stream had given before it broke off, as the SDK hangs it on the error."""
    return {name: value for name, value in vars(error).items() if isinstance(value, ModelResponse)}


def _text(error: Exception) -> str:
    return str(error).encode("utf-8", "backslashreplace").decode()
