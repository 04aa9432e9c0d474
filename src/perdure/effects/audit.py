from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeAlias

from perdure.effects.receipt import Receipt, ReceiptState
from perdure.effects.support import SideEffectSupport

AuditValue: TypeAlias = str | bool

AUDIT_KEYS: Final[Mapping[str, type]] = {
    "operation_key": str,
    "operation_target_ref": str,
    "operation_support": str,
    "operation_state": str,
    "operation_first_execution": bool,
    "operation_replay_suppressed": bool,
    "operation_reconciliation_required": bool,
    "operation_reconciliation_exhausted": bool,
    "operation_residual_duplicate_risk": bool,
}
"""Every key that an audit record may have, and its type. A record is flat."""


class AuditSink(Protocol):
    """Where audit records go. A record without these keys was never dispatched."""

    async def write(self, facts: Mapping[str, AuditValue]) -> None:
        """Keep one record; one that takes over five seconds, or raises, is dropped."""
        ...


def audit_of(
    receipt: Receipt, *, first_execution: bool = False, replay_suppressed: bool = False
) -> dict[str, AuditValue]:
    """Return what the audit says of a receipt: identity and state, never arguments or answers.

    A duplicate is also risked while nobody knows of an effect whose target could not tell a repeat
    from the first.
    """
    doubtful = receipt.state is ReceiptState.AMBIGUOUS
    blind = doubtful and receipt.support is SideEffectSupport.AT_LEAST_ONCE
    return {
        "operation_key": receipt.operation_key,
        "operation_target_ref": receipt.target,
        "operation_support": receipt.support.value,
        "operation_state": receipt.state.value,
        "operation_first_execution": first_execution,
        "operation_replay_suppressed": replay_suppressed,
        "operation_reconciliation_required": doubtful,
        "operation_reconciliation_exhausted": receipt.exhausted,
        "operation_residual_duplicate_risk": receipt.residual_duplicate_risk or blind,
    }


def allowed(facts: Mapping[str, object]) -> dict[str, AuditValue]:
    """Return only what an audit record may hold; whatever else is in `facts` is dropped."""
    return {
        key: value
        for key, value in facts.items()
        if isinstance(value, str | bool) and AUDIT_KEYS.get(key) is type(value)
    }
