"""How fast events are batched by customer from a topic to Delta, exactly once: ``python -m bench.batches_to_delta
[EVENTS]`` prints one JSON object.

Four partitions of events of 68 bytes and 50,000 customers, batches of at most 50 events or five seconds, two slots, one
commit per second; the broker runs on the same cores. Every event has to be in exactly one batch.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from bench.apps import COMMIT_INTERVAL
from bench.events import SMALL_BYTES, make_events
from bench.processes import measure
from weir import Application, StreamsBuilder, String, read_table
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings

TOPIC, MOST, RUNS = "events_batched", 50, 3

_builder = StreamsBuilder()
_events = _builder.stream(TOPIC, key=String("customer"), value=String("event"))
_events.batch(max_records=MOST, max_wait=timedelta(seconds=5), on_stop="flush", name="batches").to_delta("batches")
app = Application("batches", _builder, commit_interval=COMMIT_INTERVAL)


def main(events: int) -> None:
    with tempfile.TemporaryDirectory() as folder, broker_for(Settings(dir=Path(folder, "broker"))) as servers:
        make_events(servers, TOPIC, events, SMALL_BYTES)
        rates = []
        for run in range(RUNS):
            place = Path(folder, f"run-{run}")
            command = [sys.executable, "-m", "bench.weir_side", "bench.batches_to_delta:app", str(place), servers]
            measured = measure(command, "the batches")
            batches = read_table(place / "warehouse" / app.id / "batches")
            assert (measured.records, batches["records"].list.len().sum()) == (events, events)
            rates.append({"events_per_s": round(measured.per_s), "peak_mb": measured.peak_bytes >> 20})
    print(json.dumps({"events": events, "runs": rates}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4_000_000)
