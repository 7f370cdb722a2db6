"""Errors of topologies, applications and their input. Errors of stores and commits are in ``state.errors``."""

from __future__ import annotations

from collections.abc import Mapping


class TopologyError(Exception):
    """The program describes something that cannot run; raised while the topology is built."""


class CoPartitioningError(TopologyError):
    """Topics that meet in one task have different partition counts, so equal keys would not meet."""

    def __init__(self, sub_topology: str, counts: Mapping[str, int]) -> None:
        super().__init__(sub_topology, dict(counts))
        self.sub_topology, self.counts = sub_topology, dict(counts)

    def __str__(self) -> str:
        topics = ", ".join(f"{topic} has {count}" for topic, count in sorted(self.counts.items()))
        return (f"sub-topology {self.sub_topology!r} reads topics with different partition counts ({topics}); "
                "give them the same number of partitions and the same partitioner, or repartition the streams")


class ApplicationLoadError(Exception):
    """``package.module:attribute`` does not lead to an application."""


class BadInputError(Exception):
    """A record could not be read and the application says ``on_error="fail"``."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(topic, partition, offset, reason)
        self.topic, self.partition, self.offset, self.reason = topic, partition, offset, reason

    def __str__(self) -> str:
        return (f"topic {self.topic!r}, partition {self.partition}, offset {self.offset}: {self.reason}; correct the "
                'producer or the declared schema, or set on_error="dead_letter" to put such records aside')


class PartitionerError(Exception):
    """Keys of a topic lie in other partitions than those where repartitioned rows look for them."""

    def __init__(self, topic: str, partition: int, elsewhere: int, keys: int) -> None:
        super().__init__(topic, partition, elsewhere, keys)
        self.topic, self.partition, self.elsewhere, self.keys = topic, partition, elsewhere, keys

    def __str__(self) -> str:
        return (f"topic {self.topic!r}, partition {self.partition}: {self.elsewhere} of {self.keys} keys belong into "
                "other partitions by Kafka's default partitioner, so that repartitioned rows would not meet them; "
                "produce with partitioner=murmur2_random, or begin with stream.repartition(...).to_table(...)")


class QueryError(Exception):
    """A query of a store cannot be answered: wrong store or kind, no state here, or a position not reached."""


class BufferFullError(Exception):
    """A suppression's buffer has passed a limit and may not forward anything early."""

    def __init__(self, name: str, records: int | None, size: int | None) -> None:
        super().__init__(name, records, size)
        self.name, self.records, self.bytes = name, records, size

    def __str__(self) -> str:
        limits = " and ".join([*([f"{self.records:,} records"] if self.records is not None else []),
                               *([f"{self.bytes:,} bytes"] if self.bytes is not None else [])])
        return (f"{self.name}: the buffer has passed its limit of {limits} and is to shut down when full; raise the "
                "limit, shorten the grace, or use spill_to_disk_when_full()")


class UserFunctionError(Exception):
    """A function of the program raised, or returned what its annotation does not promise."""

    def __init__(self, function: str, node: str, reason: str) -> None:
        super().__init__(function, node, reason)
        self.function, self.node, self.reason = function, node, reason

    def __str__(self) -> str:
        return f"{self.node}: function {self.function!r} failed on a record: {self.reason}; correct the function"
