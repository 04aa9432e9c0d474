from __future__ import annotations

from perdure.errors.root import PerdureError


class EffectError(PerdureError):
    """An effect was not applied, or nobody knows."""


class EffectRejected(EffectError):
    """The target reported a refusal: the effect was not applied.

    Raised by the function that applies an effect, and only when the target said so.
    """


class EffectNotSent(EffectError):
    """Nothing left this process: the effect was not applied.

    Raised by the function that applies an effect, before it sends anything. A `RetryPolicy` tries
    it again unless it says otherwise.
    """

    retryable = True


class EffectAmbiguous(EffectError):
    """Nobody knows whether an effect was applied; its receipt says what is known.

    `needs_person` is False where the policy is to tell the caller and leave it at that.
    """

    def __init__(
        self, operation_key: str, target: str, why: str, *, needs_person: bool = True
    ) -> None:
        self.operation_key = operation_key
        self.target = target
        self.why = why
        self.needs_person = needs_person
        advice = "; do not repeat it"
        if needs_person:
            advice = f". Look at the target, then settle it: perdure effects show {operation_key}"
        super().__init__(
            f"the effect {operation_key} on {target!r} may have been applied: {why}{advice}"
        )


class EffectInProgress(EffectError):
    """Another caller applies the effect right now; it was not sent a second time."""

    def __init__(self, operation_key: str) -> None:
        self.operation_key = operation_key
        super().__init__(f"the effect {operation_key} is being applied by another caller")


class EffectConflict(EffectError):
    """An effect was asked for again as another one than its receipt was made for."""

    def __init__(self, operation_key: str, how: str = "with other arguments") -> None:
        self.operation_key = operation_key
        super().__init__(
            f"the effect {operation_key} was begun {how}; nothing was sent. Another effect needs an"
            " identity of its own"
        )


class EffectErased(EffectError):
    """The receipt of an effect was erased; nothing was sent. `state` is what it had said."""

    def __init__(self, operation_key: str, *, state: str, by: str, why: str) -> None:
        self.operation_key = operation_key
        self.state = state
        super().__init__(
            f"the receipt of the effect {operation_key} said {state!r} when {by} erased it ({why});"
            " nothing was sent. Another effect needs an identity of its own"
        )


class UnknownEffect(EffectError):
    """The store holds no receipt of that operation key."""


class StaleDecision(EffectError):
    """A decision named a version of a receipt that is not its version any more."""
