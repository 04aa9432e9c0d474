"""What Prometheus and OpenTelemetry see of the counters."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric, NumberDataPoint, Sum
from prometheus_client import CollectorRegistry, generate_latest

from perdure.adapters.opentelemetry import export_counters
from perdure.adapters.prometheus import PerdureCollector
from perdure.errors import MissingExtra
from perdure.observe import COUNTERS, Observer

AMBIGUOUS = "perdure_side_effect_ambiguous_total"
LOST = "perdure_lease_lost_total"


@pytest.fixture
def observers() -> list[Observer]:
    """Return two observers that have counted; the other counters have never moved."""
    one, two = Observer(), Observer()
    one.count(AMBIGUOUS, 2)
    two.count(AMBIGUOUS)
    two.count(LOST)
    return [one, two]


EXPECTED = {**dict.fromkeys(COUNTERS, 0), AMBIGUOUS: 3, LOST: 1}


def test_prometheus_sees_every_counter_under_its_own_name(observers: list[Observer]) -> None:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(PerdureCollector(*observers))
    text = generate_latest(registry).decode()
    samples = [line.split(" ") for line in text.splitlines() if not line.startswith("#")]
    assert {name: float(value) for name, value in samples} == EXPECTED
    assert f"# TYPE {AMBIGUOUS} counter\n" in text
    assert f"# HELP {AMBIGUOUS} {COUNTERS[AMBIGUOUS]}\n" in text
    observers[0].count(AMBIGUOUS)
    assert registry.get_sample_value(AMBIGUOUS) == 4


def test_two_collectors_in_one_registry_are_refused(observers: list[Observer]) -> None:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(PerdureCollector(*observers))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(PerdureCollector(*observers))


def test_opentelemetry_sees_every_counter_under_its_own_name(observers: list[Observer]) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    export_counters(provider.get_meter("perdure"), *observers)
    seen = {metric.name: metric for metric in _metrics(reader)}
    assert {name: _point(metric).value for name, metric in seen.items()} == EXPECTED
    assert {name: metric.description for name, metric in seen.items()} == COUNTERS
    assert all(_sum(metric).is_monotonic for metric in seen.values())
    assert not any(_point(metric).attributes for metric in seen.values())
    observers[0].count(AMBIGUOUS)
    (again,) = [metric for metric in _metrics(reader) if metric.name == AMBIGUOUS]
    assert _point(again).value == 4
    provider.shutdown()


def _metrics(reader: InMemoryMetricReader) -> Iterator[Metric]:
    data = reader.get_metrics_data()
    assert data is not None
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            yield from scope.metrics


def _sum(metric: Metric) -> Sum:
    assert isinstance(metric.data, Sum)
    return metric.data


def _point(metric: Metric) -> NumberDataPoint:
    (point,) = _sum(metric).data_points
    return point


@pytest.mark.parametrize(
    ("package", "adapter"), [("prometheus_client", "prometheus"), ("opentelemetry",) * 2]
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, adapter: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"perdure.adapters.{adapter}")
    with pytest.raises(MissingExtra, match=rf"pip install 'perdure\[{adapter}\]'"):
        importlib.import_module(f"perdure.adapters.{adapter}")


@pytest.mark.parametrize(
    ("package", "adapter"),
    [("prometheus_client.registry", "prometheus"), ("opentelemetry.metrics", "opentelemetry")],
)
def test_a_package_that_is_broken_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, package: str, adapter: str
) -> None:
    class Broken:
        def find_spec(self, name: str, path: Any, target: Any = None) -> None:
            if name == package:
                raise ModuleNotFoundError("there is no zlib", name="zlib")

    for name in (package, f"perdure.adapters.{adapter}"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match="no zlib"):
        importlib.import_module(f"perdure.adapters.{adapter}")
