from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from perdure.errors import MissingExtra
from perdure.observe import COUNTERS, Observer, totals

try:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "opentelemetry":
        raise
    raise MissingExtra(
        f"metrics for OpenTelemetry need its API, and there is no {error.name}: pip install"
        " 'perdure[opentelemetry]'"
    ) from error


def export_counters(meter: Meter, *observers: Observer) -> None:
    """Let a meter observe every counter of some observers, added up and without attributes.

    `export_counters(get_meter("perdure"), app.observer)`, once a meter. Each collection reads the
    counters as they stand; one that has not moved yet is 0.
    """
    for name, meaning in COUNTERS.items():
        observe = partial(_observe, name, observers)
        meter.create_observable_counter(name, [observe], description=meaning)


def _observe(
    name: str, observers: Sequence[Observer], options: CallbackOptions
) -> Iterator[Observation]:
    del options
    yield Observation(totals(observers)[name])
