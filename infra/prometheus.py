"""The Prometheus endpoint of a run: the newest readings under Kafka Streams' metric names, by default on the loopback.

A name is ``kafka_streams_``, the metric's group and its own name; the tags are labels, next to ``application_id``, for
example ``kafka_streams_stream_task_metrics_record_lateness_avg{application_id="shop",task_id="0_1"}``.
``docs/metrics.md`` says what the readings mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

PREFIX = "kafka_streams"


class MetricsPortError(Exception):
    """The metrics endpoint cannot listen at the given address."""


class Reading(Protocol):
    """The current value of one metric."""

    @property
    def group(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def tags(self) -> Mapping[str, str]: ...
    @property
    def value(self) -> float: ...


class PrometheusEndpoint:
    """Serves what was published last at ``http://host:port/metrics``, from its own thread."""

    def __init__(self, application: str, host: str, port: int) -> None:
        """Starts listening; port 0 picks a free one.

        Raises:
            MetricsPortError: The port is taken, or this process may not open it.
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
                "another --metrics-port, or leave it out"
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
        """Called by a scrape: one family per metric name, one sample per reading."""
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
