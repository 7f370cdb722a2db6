"""The metrics endpoint: what a scrape gets, where it listens, and a port that is taken."""

from dataclasses import dataclass, field
from urllib.request import urlopen

import pytest

from weir.infra.prometheus import MetricsPortError, PrometheusEndpoint


@dataclass(frozen=True)
class Reading:
    name: str
    value: float
    group: str = "stream-task-metrics"
    tags: dict[str, str] = field(default_factory=dict)


@pytest.mark.slow
def test_a_scrape_gets_the_newest_readings_by_kafka_streams_names():
    endpoint = PrometheusEndpoint("shop", "127.0.0.1", 0)
    try:
        endpoint.publish([Reading("process-rate", 3)])
        endpoint.publish(
            [
                Reading("record-lateness-avg", 2.5, tags={"task-id": "0_1"}),
                Reading("record-lateness-avg", 4, tags={"task-id": "0_2"}),
                Reading("dropped-records-total", 7, tags={"task-id": "0_1"}),
            ]
        )
        with urlopen(f"http://127.0.0.1:{endpoint.port}/metrics") as response:
            lines = response.read().decode().splitlines()
        name = "kafka_streams_stream_task_metrics"
        assert [line for line in lines if not line.startswith("#")] == [
            f'{name}_record_lateness_avg{{application_id="shop",task_id="0_1"}} 2.5',
            f'{name}_record_lateness_avg{{application_id="shop",task_id="0_2"}} 4.0',
            f'{name}_dropped_records_total{{application_id="shop",task_id="0_1"}} 7.0',
        ]
        assert f"# TYPE {name}_dropped_records_total counter" in lines
        with pytest.raises(MetricsPortError, match=f"127.0.0.1:{endpoint.port}: .*--metrics-port"):
            PrometheusEndpoint("other", "127.0.0.1", endpoint.port)
    finally:
        endpoint.close()
    again = PrometheusEndpoint("shop", "127.0.0.1", endpoint.port)
    again.close()
