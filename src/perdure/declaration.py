from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeAlias

import msgspec

from perdure.canonical import encode
from perdure.codec import Codec
from perdure.effects.answer import Lookup
from perdure.effects.effect import Encode
from perdure.effects.support import EffectPolicy
from perdure.journal.record import Outcome
from perdure.retry import RetryPolicy, retryable

ErrorTypes: TypeAlias = tuple[type[Exception], ...]


class Verdict(enum.Enum):
    """What a handler knows of its effect, where its outcome alone does not tell."""

    APPLIED = "applied"
    REFUSED = "refused"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"


class Reported(msgspec.Struct, frozen=True):
    """An outcome to record as it is, whatever it looks like, and what became of the effect.

    With `UNKNOWN` the outcome is recorded and the receipt is ambiguous: the caller is told what
    was heard, and nobody sends again. None leaves the verdict to `error`, as if the handler had
    raised it; the outcome is then what an exception that ends the operation is recorded as. `why`
    is what the receipt says of it; empty for what the error or the outcome says.
    """

    outcome: Outcome
    verdict: Verdict | None
    why: str = ""
    error: Exception | None = None


class EffectDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation does to the world, as its function or its tool declares it.

    `lookup` asks the target what became of an attempt. Exceptions of the types in `rejected` mean
    that the target refused, and those in `not_sent` that nothing left the process. `output_of`
    makes the operation's output of what the target, or a person, says that it answered; None when
    that is the same document. What `prepare` returns is entered before the effect is claimed: an
    exception out of it is the operation's failure, and leaves no receipt. It is not entered for an
    effect that may have been applied before. `function` is the one whose annotations name the
    classes that it returns; None where nobody knows.
    """

    policy: EffectPolicy = EffectPolicy()
    lookup: Lookup | None = None
    rejected: ErrorTypes = ()
    not_sent: ErrorTypes = ()
    output_of: Callable[[bytes], bytes] | None = None
    prepare: Callable[[], AbstractAsyncContextManager[object]] | None = None
    function: Callable[..., Any] | None = None

    def retries(self, retry: RetryPolicy, error: Exception, attempt: int) -> bool:
        """Return whether an attempt that raised is followed by another.

        What the target refused is not asked for again, unless the policy or the exception says so.
        """
        refused = isinstance(error, self.rejected) and retry.retry_on is retryable
        if refused and getattr(error, "retryable", None) is not True:
            return False
        return retry.allows(error, attempt)

    def encoder(self, codec: Codec) -> Encode:
        """Return what writes what a lookup says; agents have JSON values, whatever the codec."""
        what = "the lookup's result"
        if self.output_of is not None:
            return partial(encode, what=what)
        return partial(codec.encode, what=what, function=self.function)


class KnownEffects:
    """The effects that a process can ask about: what it was given, and what its runs asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], EffectDeclaration | None] = {}

    def learn(self, handler_id: str, declared: EffectDeclaration) -> None:
        """Remember how to ask about the effects of a handler on its target.

        Nobody is asked where two lookups claim to know: the wrong one would answer "never".
        """
        key = (handler_id, declared.policy.target_of(handler_id))
        known = self._known.setdefault(key, declared)
        if known is not None and known.lookup is not declared.lookup:
            self._known[key] = None

    def find(self, handler_id: str, target: str) -> EffectDeclaration | None:
        """Return the declaration of who can be asked, or None."""
        declared = self._known.get((handler_id, target))
        return declared if declared is not None and declared.lookup is not None else None

    def askable(self) -> list[str]:
        """Return the handlers of which some target can be asked."""
        return [name for name, target in self._known if self.find(name, target) is not None]
