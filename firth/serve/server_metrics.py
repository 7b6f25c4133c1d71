"""Metrics for Prometheus: requests, queues, batches, tokens and latencies."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from firth.serve.admission import Admission

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
TOKENS = tuple(4**power for power in range(2, 10))


class ServerMetrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        how: Any = {"registry": self.registry}
        self.requests = Counter(
            "firth_requests", "Requests by route and status.", ("route", "status"), **how
        )
        self.seconds = Histogram(
            "firth_request_seconds", "Duration of requests.", ("route",), buckets=SECONDS, **how
        )
        self.running = Gauge("firth_requests_running", "Requests that are being answered.", **how)
        self.tokens = Counter(
            "firth_tokens", "Tokens read (prompt) and generated.", ("model", "kind"), **how
        )
        self.queue = Gauge(
            "firth_queue_tokens", "Tokens of requests that wait or run.", ("model",), **how
        )
        self.sequences = Gauge(
            "firth_sequences", "Completions that are being generated.", ("model",), **how
        )
        self.batch_inputs = Histogram(
            "firth_batch_inputs", "Inputs per batch.", ("model",), buckets=SIZES, **how
        )
        self.batch_tokens = Histogram(
            "firth_batch_tokens", "Tokens per batch.", ("model",), buckets=TOKENS, **how
        )

    def watch_queue(self, model: str, admission: Admission) -> None:
        """Report the tokens of a model's queue."""
        self.queue.labels(model).set_function(lambda: admission.tokens)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
