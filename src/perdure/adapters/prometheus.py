from __future__ import annotations

from collections.abc import Iterator

from perdure.errors import MissingExtra
from perdure.observe import COUNTERS, Observer, totals

try:
    from prometheus_client.core import CounterMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "prometheus_client":
        raise
    raise MissingExtra(
        f"metrics for Prometheus need its client, and there is no {error.name}: pip install"
        " 'perdure[prometheus]'"
    ) from error


class PerdureCollector(Collector):
    """Gives Prometheus every counter of some observers, added up and without labels.

    `REGISTRY.register(PerdureCollector(app.observer, store.observer))`. Each scrape reads the
    counters as they stand; one that has not moved yet is 0.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counters; Prometheus calls it, from a thread of its own."""
        for name, total in totals(self._observers).items():
            yield CounterMetricFamily(name, COUNTERS[name], value=total)
