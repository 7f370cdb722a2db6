"""librdkafka's clients of a process, each shared by all topic partitions that are read with the same properties.

A client has threads, sockets and a connection for each broker; a partition that is read through it adds a queue of its
own. How much is fetched ahead depends on how many partitions the process reads (``CROWDS``, docs/adr/0017). Which
partitions fetch belongs to ``weir.infra.kafka.fetching``, reading one of them to ``weir.infra.kafka.consumer``.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.infra.kafka.librdkafka import CONSUMER, OK, new_client, new_conf, rdkafka


@dataclass(frozen=True)
class Crowd:
    """What holds while a process reads at most ``partitions``."""

    partitions: int
    fetching: int
    """How many of them fetch at a time."""
    most: Mapping[str, int] = field(default_factory=dict)
    """Properties that are lowered to these values."""


CROWDS = (
    Crowd(16, 16),
    Crowd(
        64,
        64,
        {"queued.min.messages": 4_000, "queued.max.messages.kbytes": 512, "max.partition.fetch.bytes": 256_000}
        | {"fetch.max.bytes": 4_000_000},
    ),
    Crowd(
        sys.maxsize,
        32,
        {"queued.min.messages": 2_000, "queued.max.messages.kbytes": 128, "max.partition.fetch.bytes": 128_000}
        | {"fetch.max.bytes": 1_000_000, "fetch.wait.max.ms": 2},
    ),
)
"""A queue holds about 450 bytes per record beside its data. A partition that begins to fetch waits for the broker's
answer to those that are at their end, hence the short ``fetch.wait.max.ms`` where partitions take turns."""


class SharedClient:
    """One client, and the topic partitions that are read through it.

    Raises:
        KafkaException: A property is invalid.
    """

    def __init__(self, properties: Mapping[str, object]) -> None:
        self.pointer = new_client(CONSUMER, new_conf(properties))
        self.read: set[tuple[str, int]] = set()
        self._asked: set[str] = set()

    def connect(self, topic: str, handle: int | None, timeout_s: float) -> None:
        """Connect to the brokers and ask them for the topic, unless that was done before."""
        if topic in self._asked:
            return
        self._asked.add(topic)
        kafka, metadata = rdkafka(), ctypes.c_void_p()
        if kafka.rd_kafka_metadata(self.pointer, 0, handle, ctypes.byref(metadata), round(timeout_s * 1000)) == OK:
            kafka.rd_kafka_metadata_destroy(metadata)


class SharedClients:
    """The clients of a process; not to be used by several threads at a time."""

    def __init__(self) -> None:
        self._clients: list[tuple[Mapping[str, object], SharedClient]] = []

    @property
    def crowd(self) -> Crowd:
        """What holds for as many partitions as are read now."""
        return self._crowd_with(0)

    def suits(self, client: SharedClient, properties: Mapping[str, object]) -> bool:
        """Whether ``client`` is as ``join`` would choose it."""
        wanted = _lowered(properties, self.crowd)
        return any(each is client and given == wanted for given, each in self._clients)

    def join(self, properties: Mapping[str, object], topic: str, partition: int) -> SharedClient:
        """A client with ``properties`` through which nobody else reads the topic partition.

        Raises:
            KafkaException: A property is invalid.
        """
        place, wanted = (topic, partition), _lowered(properties, self._crowd_with(1))
        for given, client in self._clients:
            if given == wanted and place not in client.read:
                client.read.add(place)
                return client
        client = SharedClient(wanted)
        client.read.add(place)
        self._clients.append((wanted, client))
        return client

    def leave(self, client: SharedClient, topic: str, partition: int) -> None:
        """The topic partition is not read through ``client`` any more, which ends if it was the last one.

        Nobody waits for that: librdkafka 2.16 never returns once a topic that was read has been deleted.
        """
        client.read.remove((topic, partition))
        if not client.read:
            self._clients = [each for each in self._clients if each[1] is not client]
            end = threading.Thread(target=rdkafka().rd_kafka_destroy, args=[client.pointer], daemon=True)
            end.start()

    def _crowd_with(self, more: int) -> Crowd:
        count = sum(len(client.read) for _, client in self._clients) + more
        return next(crowd for crowd in CROWDS if count <= crowd.partitions)


def _lowered(properties: Mapping[str, object], crowd: Crowd) -> Mapping[str, object]:
    lowered = dict(properties)
    for name, most in crowd.most.items():
        given = str(lowered.get(name, most))
        if given.isdecimal():  # else it is for librdkafka to refuse
            lowered[name] = min(int(given), most)
    return lowered
