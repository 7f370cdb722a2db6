"""A producer that sends events at a fixed rate while a bench looks at what becomes of them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from confluent_kafka import Producer

from bench import cluster
from bench.events import SMALL_BYTES

TICK_S = 0.005


@contextmanager
def producing(
    client: Path, topic: str, rate: int, events: int, frame: Callable[[int, int, int], pl.DataFrame]
) -> Iterator[None]:
    """During the block, another process sends ``rate`` events of 68 bytes a second, each with the time at which it is
    sent: the first ``events`` that ``frame`` makes, then these again."""
    producer = multiprocessing.get_context("spawn").Process(
        target=_produce, args=(client, topic, rate, events, frame), daemon=True
    )
    producer.start()
    try:
        yield
    finally:
        producer.terminate()
        producer.join()


def _produce(client: Path, topic: str, rate: int, events: int, frame: Callable[[int, int, int], pl.DataFrame]) -> None:
    settings = {"linger.ms": 1, "partitioner": "murmur2_random"}
    producer = Producer({**cluster.properties(client), **settings})
    rows = frame(0, events, SMALL_BYTES).select("key", "value").rows()
    began, sent = time.monotonic(), 0
    while True:
        due = int(rate * (time.monotonic() - began))
        for number in range(sent, due):
            key, value = rows[number % events]
            while True:
                try:
                    producer.produce(topic, value, key, timestamp=time.time_ns() // 1_000_000)
                    break
                except BufferError:  # the broker is slower than that: events are sent later, with the time of then
                    producer.poll(TICK_S)
        sent = due
        producer.poll(0)
        time.sleep(TICK_S)
