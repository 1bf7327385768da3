"""What /metrics shows: requests by status, seconds of requests and stages, lines read together, places taken."""

from __future__ import annotations

from inkmill.errors import MissingExtraError
from inkmill.serve.service import PageService

try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from prometheus_client.process_collector import ProcessCollector
except ImportError:
    raise MissingExtraError("prometheus_client", "serve", "inkmill serve") from None

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60)
_LINES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counts, in a registry of its own: two servers in one process count apart.

    Args:
        service: whose work is counted.
    """

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, service: PageService) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("inkmill_requests", "Requests to /v1/read by status", ["status"], registry=registry)
        self._request_s = Histogram(
            "inkmill_request_seconds", "From a request's first byte to its answer", registry=registry, buckets=_SECONDS
        )
        stages = Histogram(
            "inkmill_stage_seconds", "Of a page, by stage", ["stage"], registry=registry, buckets=_SECONDS
        )
        lines = Histogram("inkmill_lines_together", "Lines in a round", registry=registry, buckets=_LINES)
        pages = Counter("inkmill_pages", "Pages read", registry=registry)
        admitted = Gauge("inkmill_admitted", "Requests that are served or wait", registry=registry)
        admitted.set_function(lambda: service.admitted)
        service.seen.lines = lines.observe
        service.seen.stage = lambda stage, seconds: stages.labels(stage).observe(seconds)
        service.seen.pages = pages.inc

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count an answer."""
        if path == "/v1/read":
            self._requests.labels(str(status)).inc()
            self._request_s.observe(seconds)

    def render(self) -> bytes:
        """Return the text format of Prometheus."""
        return generate_latest(self._registry)
