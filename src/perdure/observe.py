from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

log: Final = logging.getLogger("perdure")

COUNTERS: Final = {
    "perdure_operation_executed_total": "operations whose handler was called",
    "perdure_operation_replayed_total": "operations answered from the journal",
    "perdure_operation_retried_total": "attempts after the first of an operation",
    "perdure_run_started_total": "runs written by this process",
    "perdure_run_claimed_total": "runs claimed by this worker",
    "perdure_run_recovered_total": "runs taken from a worker that died or went silent",
    "perdure_side_effect_first_execution_total": "effects sent for the first time",
    "perdure_side_effect_replay_suppressed_total": "effects answered from their receipt",
    "perdure_side_effect_ambiguous_total": "attempts of which nobody knows what they did",
    "perdure_side_effect_reconciliation_succeeded_total": "ambiguous effects that were settled",
    "perdure_side_effect_reconciliation_failed_total": "ambiguous effects nobody could settle",
    "perdure_lease_fencing_rejected_total": "writes refused because the run has another owner",
    "perdure_session_unshown_total": "outputs and events that people could not be shown",
    "perdure_lease_lost_total": "runs given up because ownership ended or could not be confirmed",
}
"""Every counter and what it counts."""


class Observer:
    """Counts what live execution does; a replay adds only to the replay counter."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, name: str, amount: int = 1) -> None:
        """Add to one of `COUNTERS`."""
        self.counts[name] += amount


def totals(observers: Sequence[Observer]) -> dict[str, int]:
    """Return what observers counted, added up: all of `COUNTERS`, also what never moved."""
    return {name: sum(observer.counts[name] for observer in observers) for name in COUNTERS}
