from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import msgspec

from perdure.clock import Clock
from perdure.declaration import EffectDeclaration
from perdure.journal.invocation import Invocation
from perdure.retry import Advice, RetryPolicy, advice_of

_NO_EFFECT = EffectDeclaration()


class Delay(msgspec.Struct, frozen=True):
    """The delay before a retry, and what it takes together with those before it."""

    milliseconds: int
    total_ms: int
    advice: Advice

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.milliseconds / 1000


class Tries:
    """The tries of one operation: which one is made, and when the next one is after a failure.

    What was decided about a failure stays decided: a server may ask for a date, and time goes on
    while it is written what became of the effect.
    """

    def __init__(
        self,
        invocation: Invocation,
        policy: RetryPolicy | None,
        effect: EffectDeclaration | None,
        clock: Clock,
        *,
        failures: int = 0,
        spent_ms: int = 0,
    ) -> None:
        self.number = failures + 1
        self._invocation = invocation
        self._policy = policy
        self._effect = effect or _NO_EFFECT
        self._clock = clock
        self._spent_ms = spent_ms
        self._decided: tuple[Exception, Delay | None] | None = None

    @property
    def retries(self) -> Callable[[Exception], bool] | None:
        """Tells which exceptions of this try are followed by another; None when none ever is."""
        return None if self._policy is None else self._retries

    def delay_after(self, error: Exception | None) -> Delay | None:
        """Return the delay between this try, which raised, and the next; None for no other try."""
        if error is None or self._policy is None:
            return None
        if self._decided is None or self._decided[0] is not error:
            self._decided = (error, self._decide(self._policy, error))
        return self._decided[1]

    def next(self, delay: Delay) -> None:
        """Go on to the next try, after a delay that was waited."""
        self.number += 1
        self._spent_ms = delay.total_ms
        self._decided = None

    def request(self, delay: Delay, error_name: str) -> bytes:
        """Return the document that a delay is recorded with."""
        # Costs more at start-up than a program without failures needs.
        from perdure.journal.payloads.retry import RetryRequest, encode_retry_request

        advice = delay.advice
        asked = advice.retry_after_seconds
        return encode_retry_request(
            RetryRequest(
                delay_ms=delay.milliseconds,
                retry_number=self.number,
                model_requests=self._invocation.sequence,
                total_delay_ms=delay.total_ms,
                error_name=error_name,
                retry_after_seconds=None if asked is None else math.ceil(asked),
                rate_limit_remaining_requests=advice.remaining_requests,
                rate_limit_remaining_tokens=advice.remaining_tokens,
                provider_request_id=advice.request_id,
            )
        )

    def _retries(self, error: Exception) -> bool:
        return self.delay_after(error) is not None

    def _decide(self, policy: RetryPolicy, error: Exception) -> Delay | None:
        if not self._effect.retries(policy, error, self.number):
            return None
        advice = advice_of(error, self._clock.now())
        of = self._invocation
        asked = advice.retry_after_seconds
        milliseconds = policy.delay_ms(of.run_id, self.number, of.sequence, asked)
        if not policy.affords(milliseconds, self._spent_ms):
            return None
        return Delay(milliseconds, self._spent_ms + milliseconds, advice)


class _Recorded(msgspec.Struct, frozen=True):
    """What counts of a recorded delay; older ones have no total."""

    delay_ms: int
    total_delay_ms: int | None = None


async def spent_ms(read: Callable[[int], Awaitable[bytes]], delays: int) -> int:
    """Return what the delays 1 to `delays` of an operation took, from the inputs that `read` gives.

    The same in every execution, whatever was waited of them.
    """
    spent = 0
    for number in range(delays, 0, -1):
        recorded = msgspec.json.decode(await read(number), type=_Recorded)
        if recorded.total_delay_ms is not None:
            return spent + recorded.total_delay_ms
        spent += recorded.delay_ms
    return spent
