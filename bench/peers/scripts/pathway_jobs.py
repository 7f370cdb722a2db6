"""The benchmark's jobs in Pathway; ``processes.py`` has the arguments, of which the last is the job."""

import sys
import time

import pathway as pw
from login import properties


class Event(pw.Schema):  # type: ignore[misc]
    """The fields of the events that the jobs need."""

    user: str
    amount: int


def add_amount(total: int, amount: int) -> int:
    return total + amount


@pw.reducers.stateful_many  # type: ignore[untyped-decorator]
def function_sum(total: int | None, rows: list[tuple[list[int], int]]) -> int:
    """The sum of a key, from rows that came together, each with how many are the same."""
    total = total or 0
    for (amount,), count in rows:
        for _ in range(count):
            total = add_amount(total, amount)
    return total


def main(index: str, ports: str, client: str, topic: str, output: str, state: str, job: str) -> None:
    login = properties(client)
    consumer = {**login, "group.id": output, "auto.offset.reset": "earliest"}
    events = pw.io.kafka.read(
        consumer, topic, schema=Event, format="json", mode="static", autocommit_duration_ms=1000, name="events"
    )
    reducer = function_sum if job == "python_sum" else pw.reducers.sum
    sums = events.groupby(pw.this.user).reduce(pw.this.user, total=reducer(pw.this.amount))
    updates = sums.to_stream()  # without it, each old total is written, too
    messages = updates.select(
        key=pw.apply_with_type(str.encode, bytes, pw.this.user),
        value=pw.apply_with_type(lambda total: total.to_bytes(8, signed=True), bytes, pw.this.total),
    )
    producer = {**login, "linger.ms": "50", "compression.type": "lz4"}
    pw.io.kafka.write(messages, producer, output, format="raw", key=messages.key, value=messages.value)
    folder = pw.persistence.Backend.filesystem(f"{state}/inputs")
    print(time.monotonic(), flush=True)  # reading begins ten milliseconds later
    pw.run(
        monitoring_level=pw.MonitoringLevel.NONE,
        persistence_config=pw.persistence.Config(folder, snapshot_interval_ms=1000),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
