from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest


class Metrics:
    """What a sidecar counts, for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "perdure_sidecar_requests",
            "requests that were answered, by status",
            ["status"],
            registry=self.registry,
        )
        self.attempts = Counter(
            "perdure_sidecar_attempts",
            "attempts of handlers, by what became of them",
            ["outcome"],
            registry=self.registry,
        )
        self.open_requests = Gauge(
            "perdure_sidecar_open_requests",
            "requests that wait for their record, or to be read",
            registry=self.registry,
        )
        self.running = Gauge(
            "perdure_sidecar_running_handlers", "handlers at work", registry=self.registry
        )

    def text(self) -> bytes:
        """Return all of it in the text format."""
        return generate_latest(self.registry)
