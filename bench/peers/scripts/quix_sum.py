"""``python_sum`` in Quix Streams; ``processes.py`` has the arguments."""

import sys
import time
from typing import Any

import orjson
from login import properties
from quixstreams import Application
from quixstreams.kafka.configuration import ConnectionConfig
from quixstreams.models import JSONDeserializer


def main(index: str, ports: str, client: str, topic: str, output: str, state: str) -> None:
    app = Application(
        ConnectionConfig.from_librdkafka_dict(properties(client)),
        consumer_group=output,
        processing_guarantee="exactly-once",
        commit_interval=1.0,
        auto_offset_reset="earliest",
        state_dir=f"{state}/{index}",
        consumer_extra_config={"fetch.max.bytes": 50_000_000, "max.partition.fetch.bytes": 4_000_000},
        producer_extra_config={"linger.ms": 50, "compression.type": "lz4"},
        loglevel="ERROR",
    )
    is_first = True

    def add_amount(event: dict[str, Any], state: Any) -> int:
        nonlocal is_first
        if is_first:
            is_first = False
            print(time.monotonic(), flush=True)
        total: int = state.get("total", 0) + event["amount"]
        state.set("total", total)
        return total

    events = app.topic(topic, value_deserializer=JSONDeserializer(loads=orjson.loads))
    totals = app.topic(output, value_serializer="bytes")
    sums = app.dataframe(events).apply(add_amount, stateful=True)
    sums.apply(lambda total: total.to_bytes(8, signed=True)).to_topic(totals)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
