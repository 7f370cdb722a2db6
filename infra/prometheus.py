"""The Prometheus endpoint of a run: the newest readings, by Kafka Streams' metric names, over HTTP on the loopback.

Names are ``kafka_streams_``, the metric's group and its own name, the tags are labels beside ``application_id``, as in
``kafka_streams_stream_task_metrics_record_lateness_avg{application_id="shop",task_id="0_1"}``. What the readings mean
is ``docs/metrics.md``'s to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

PREFIX = "kafka_streams"


class MetricsPortError(Exception):
    """The metrics endpoint cannot listen where it was told to."""


class Reading(Protocol):
    """One metric as of now."""

    @property
    def group(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def tags(self) -> Mapping[str, str]: ...
    @property
    def value(self) -> float: ...


class PrometheusEndpoint:
    """Serves what was published last at ``http://host:port/metrics``, from a thread of its own."""

    def __init__(self, application: str, host: str, port: int) -> None:
        """Listens from now on; port 0 takes a free one.

        Raises:
            MetricsPortError: The port is taken, or not this process's to open.
        """
        self._application = application
        self._readings: Sequence[Reading] = ()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise MetricsPortError(
                f"metrics cannot be served at {host}:{port}: {error.strerror or error}; choose "
                "another --metrics-port, or none"
            ) from None
        self.port = int(self._server.server_port)

    def publish(self, readings: Sequence[Reading]) -> None:
        """Serve these from now on."""
        self._readings = readings

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Metric]:
        """Called by a scrape: a family a metric name, a sample a reading."""
        families: dict[str, Metric] = {}
        for reading in self._readings:
            name = _plain(f"{PREFIX}-{reading.group}-{reading.name}")
            labels = {"application-id": self._application, **reading.tags}
            family = families.get(name)
            if family is None:
                make = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                family = families[name] = make(name, reading.name, labels=_labels(labels))
            family.add_metric(list(labels.values()), reading.value)  # type: ignore[attr-defined]
        yield from families.values()


def _labels(tags: Iterable[str]) -> list[str]:
    return [_plain(name) for name in tags]


def _plain(name: str) -> str:
    return name.replace("-", "_")
