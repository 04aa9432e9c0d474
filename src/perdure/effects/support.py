from __future__ import annotations

import enum
from typing import TypeVar

import msgspec

from perdure.errors import InvalidFunction

MemberT = TypeVar("MemberT", bound=enum.StrEnum)


class SideEffectSupport(enum.StrEnum):
    """What a target can do about a repeated effect."""

    IDEMPOTENT = "idempotent"
    """It accepts the operation key and applies the effect once."""

    OUTCOME_QUERYABLE = "outcome_queryable"
    """It can be asked what became of an earlier attempt."""

    AT_LEAST_ONCE = "at_least_once"
    """Neither. A repeated attempt may apply the effect twice."""


class OnAmbiguous(enum.StrEnum):
    """What happens when nobody can be asked whether an effect was applied."""

    ASK = "ask"
    """The run waits, and a person settles it."""

    RETRY = "retry"
    """It is sent again, and the risk of a duplicate is recorded."""

    TELL = "tell"
    """The caller gets an outcome that says so; the receipt stays ambiguous."""


class EffectPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How an effect is applied and how doubt about it is settled.

    `support` and `on_ambiguous` may be given as texts, such as "outcome_queryable". `target` names
    what it acts on. `timeout_seconds` bounds one attempt; None for no bound.
    `key_valid_for_seconds` is how long the target remembers an operation key; None for always.
    `settle_seconds` is how long after the end of an attempt its effect may still appear at the
    target. `reconcile_attempts` is how many lookups without an answer are made.
    """

    support: SideEffectSupport = SideEffectSupport.AT_LEAST_ONCE
    target: str = ""
    on_ambiguous: OnAmbiguous = OnAmbiguous.ASK
    timeout_seconds: float | None = None
    key_valid_for_seconds: float | None = None
    settle_seconds: float = 0.0
    reconcile_attempts: int = 3

    def target_of(self, handler_id: str) -> str:
        """Return what a handler acts on: the target, or the handler itself by default."""
        return self.target or handler_id

    def __post_init__(self) -> None:
        for what, kind in (("support", SideEffectSupport), ("on_ambiguous", OnAmbiguous)):
            msgspec.structs.force_setattr(self, what, member_of(kind, what, getattr(self, what)))
        for name in ("timeout_seconds", "key_valid_for_seconds", "settle_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds >= 0:
                raise InvalidFunction(f"an effect's {name} is 0 or more seconds, not {seconds!r}")
        if self.reconcile_attempts < 1:
            raise InvalidFunction(
                f"an effect's reconcile_attempts is 1 or more, not {self.reconcile_attempts!r}"
            )


def member_of(kind: type[MemberT], what: str, value: MemberT | str) -> MemberT:
    """Return what a text spells, with hyphens or underscores; raises `InvalidFunction`."""
    try:
        return kind(str(value).replace("-", "_"))
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        raise InvalidFunction(f"an effect's {what} is one of {known}, not {value!r}") from None
