"""How fast a topic can be read at all: ``python -m bench.raw_read CLIENT TOPIC``.

As many processes as Weir has slots read the topic's partitions with Weir's reader into columns, which they drop: no
operators, no state, no commits. CLIENT is the broker's file of client properties. Give it the variables of workers,
``weir.infra.spark.session.WORKER_VARIABLES``.

Prints one JSON object: records, and seconds from when all processes are connected to the end of the last one's read.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path

from bench import cluster
from bench.events import PARTITIONS
from bench.processes import BenchError
from bench.weir_side import SLOTS
from weir.infra.kafka.reader import PartitionReader
from weir.infra.settings import Settings

READ_RECORDS = Settings.model_fields["max_epoch_records"].default // PARTITIONS
"""What a full epoch of Weir reads of a partition."""
LIMIT_S = 60.0

_connected: Barrier
"""In each process that reads."""


def main(arguments: Sequence[str]) -> None:
    client, topic = Path(arguments[0]), arguments[1]
    ends = cluster.admin(client).end_offsets([(topic, partition) for partition in range(PARTITIONS)])
    parts = [{each: ends[topic, each] for each in range(slot, PARTITIONS, SLOTS)} for slot in range(SLOTS)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(SLOTS, spawn, initializer=_begin, initargs=(spawn.Barrier(SLOTS),)) as processes:
        counts, begun, ended = zip(*processes.map(_read, [client] * SLOTS, [topic] * SLOTS, parts), strict=True)
    print(json.dumps({"records": sum(counts), "seconds": max(ended) - min(begun)}))


def read_all(readers: Mapping[PartitionReader, int]) -> int:
    """Read partitions in turn from the first offset to the one before their ends; returns how many records there are.

    Raises:
        BenchError: A partition gives no more records before its end.
    """
    count, positions = 0, dict.fromkeys(readers, 0)
    while positions:
        for reader, position in list(positions.items()):
            end = readers[reader]
            raw = reader.read(position, min(end, position + READ_RECORDS))
            count += raw.frame.height
            positions[reader] = raw.next_offset
            if raw.next_offset >= end:
                del positions[reader]
            elif raw.next_offset == position:
                raise BenchError(f"{reader.topic}-{reader.partition}: nothing comes from offset {position} on")
    return count


def _begin(connected: Barrier) -> None:
    global _connected  # barriers reach a process as it starts, or never
    _connected = connected


def _read(client: Path, topic: str, ends: Mapping[int, int]) -> tuple[int, float, float]:
    readers = {PartitionReader(cluster.properties(client), topic, each): end for each, end in ends.items()}
    for reader in readers:
        reader.connect()
    _connected.wait(LIMIT_S)
    begun = time.monotonic()
    count = read_all(readers)
    ended = time.monotonic()
    for reader in readers:
        reader.close()
    return count, begun, ended


if __name__ == "__main__":
    main(sys.argv[1:])
