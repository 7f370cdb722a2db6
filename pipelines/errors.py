"""Errors of topologies, applications and their input. Errors of stores and commits are in ``weir.state.errors``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from weir.pipelines.place import Place


class TopologyError(Exception):
    """The program describes something that cannot run; raised while the topology is built.

    The text ends with the calls of the program that it is about, such as ``; at shop.py:42: orders.join(...)``: those
    at ``places``, by default the one that failed.
    """

    def __init__(self, message: str, *, places: Iterable[Place | None] | None = None) -> None:
        super().__init__(message)
        found = [Place.of_call()] if places is None else places
        self.places = tuple(dict.fromkeys(place for place in found if place is not None))

    def __str__(self) -> str:
        return "; at ".join([self._message(), *map(str, self.places)])

    def _message(self) -> str:
        return super().__str__()


class CoPartitioningError(TopologyError):
    """Topics that meet in one task have different partition counts, so equal keys would not meet."""

    def __init__(self, sub_topology: str, counts: Mapping[str, int], *, places: Iterable[Place | None] = ()) -> None:
        """``places`` are those of the node where the topics meet, and of what reads each."""
        super().__init__(sub_topology, places=places)
        self.args = (sub_topology, dict(counts))
        self.sub_topology, self.counts = sub_topology, dict(counts)

    def _message(self) -> str:
        topics = ", ".join(f"{topic} has {count}" for topic, count in sorted(self.counts.items()))
        return (
            f"sub-topology {self.sub_topology!r} reads topics with different partition counts ({topics}); "
            "give them the same number of partitions and the same partitioner, or repartition the streams"
        )


class ApplicationLoadError(Exception):
    """``package.module:attribute`` does not lead to an application."""


class BadInputError(Exception):
    """A record could not be read, and the application has ``on_error="fail"``."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(topic, partition, offset, reason)
        self.topic, self.partition, self.offset, self.reason = topic, partition, offset, reason

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r}, partition {self.partition}, offset {self.offset}: {self.reason}; correct the "
            'producer or the declared schema, or write Application(..., on_error="dead_letter") to put such records '
            "aside"
        )


class PartitionerError(Exception):
    """Keys of a topic are not in the partitions where repartitioned rows look for them."""

    def __init__(self, topic: str, partition: int, elsewhere: int, keys: int) -> None:
        super().__init__(topic, partition, elsewhere, keys)
        self.topic, self.partition, self.elsewhere, self.keys = topic, partition, elsewhere, keys

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r}, partition {self.partition}: {self.elsewhere} of {self.keys} keys belong in "
            "other partitions by Kafka's default partitioner, so repartitioned rows would not find them; "
            "set the producer's property partitioner=murmur2_random, or begin with "
            "stream.repartition(...).to_table(...)"
        )


class QueryError(Exception):
    """A query of a store cannot be answered: wrong store or kind, no state here, or a position not reached."""


class BufferFullError(Exception):
    """A suppression's buffer has exceeded a limit and may not forward anything early."""

    def __init__(self, name: str, records: int | None, size: int | None) -> None:
        super().__init__(name, records, size)
        self.name, self.records, self.bytes = name, records, size

    def __str__(self) -> str:
        limits = " and ".join(
            [
                f"{limit:,} {unit}{'' if limit == 1 else 's'}"
                for limit, unit in ((self.records, "record"), (self.bytes, "byte"))
                if limit is not None
            ]
        )
        return (
            f"{self.name}: the buffer has exceeded its limit of {limits} and shuts down when full; raise the limit, "
            "shorten the windows' grace, or write BufferConfig.max_records(...).spill_to_disk_when_full()"
        )


@dataclass(frozen=True, kw_only=True)
class RecordPlace:
    """Identifies a record: by topic, partition and offset if it was read from a topic, else by time; and by key."""

    partition: int
    offset: int
    """Without a topic, the number by which the task orders records."""
    time_ms: int
    key: Mapping[str, Any]
    topic: str | None = None

    def __str__(self) -> str:
        key = ", ".join(f"{name}={value!r}" for name, value in self.key.items())
        if self.topic is not None:
            return f"topic {self.topic!r}, partition {self.partition}, offset {self.offset}, key {key}"
        return f"key {key}, time {_utc(self.time_ms)}"


Stage = Literal["deserialization", "processing", "production"]
"""Where a record fails: when it is read, in an operator, or when a sink serializes what comes of it."""


class ProcessingError(Exception):
    """An operator failed on its rows."""

    node: str
    stage: Stage = "processing"
    turn: int | None = None
    """Which of the task's rows caused the one that failed, from 0; None if that is not known."""

    @property
    def cause(self) -> str:
        """What is wrong, without the node and the record."""
        raise NotImplementedError


class OperatorError(ProcessingError):
    """An operator failed on some of its rows, for example because of an expression of the program."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(node, reason)
        self.node, self.reason = node, reason

    @property
    def cause(self) -> str:
        return self.reason

    def __str__(self) -> str:
        return (
            f"{self.node}: {self.reason}; correct the expression, or write "
            'Application(..., on_processing_error="dead_letter") to put such records aside'
        )


class UserFunctionError(ProcessingError):
    """A function of the program raised, or returned what its annotation does not promise."""

    def __init__(self, function: str, node: str, reason: str, record: RecordPlace | None) -> None:
        super().__init__(function, node, reason, record)
        self.function, self.node, self.reason, self.record = function, node, reason, record

    @property
    def cause(self) -> str:
        return f"function {self.function!r}: {self.reason}"

    def __str__(self) -> str:
        at = "" if self.record is None else f" on the record of {self.record}"
        text = f"{self.node}: function {self.function!r} failed{at}: {self.reason}; correct the function"
        if self.record is None:
            return text
        return f'{text}, or write Application(..., on_processing_error="dead_letter") to put such records aside'


class InvalidTimestampError(UserFunctionError):
    """``with_timestamp`` gave a record no time, a negative one, or one after the year 9999."""

    def __str__(self) -> str:
        record = "a record" if self.record is None else f"the record of {self.record}"
        return (
            f"{self.node}: {self.function} gave {record} {self.reason}; correct it, or drop such records with "
            'with_timestamp(..., on_invalid="skip")'
        )


class ExpectationError(ProcessingError):
    """Rows violate an expectation of the program that puts aside, or stops the run at, the records that caused them."""

    def __init__(
        self,
        node: str,
        expectation: str,
        on_violation: str,
        offsets: tuple[int, ...],
        record: RecordPlace,
        columns: Mapping[str, Any],
    ) -> None:
        """``on_violation`` is "dead_letter" or "fail", ``offsets`` are of all rows, and the rest is of the first."""
        super().__init__(node, expectation, on_violation, offsets, record, columns)
        self.node, self.expectation, self.on_violation = node, expectation, on_violation
        self.offsets, self.record, self.columns = offsets, record, columns
        self.turns: tuple[int, ...] | None = None
        """If no other record can change what is judged, which of the task's rows caused those that violate it."""

    @property
    def cause(self) -> str:
        if self.on_violation == "dead_letter":
            return f"the expectation {self.expectation!r} is violated"
        found = ", ".join(f"{name}={value!r}" for name, value in self.columns.items())
        return f"the expectation {self.expectation!r} is violated by {found}"

    def __str__(self) -> str:
        return (
            f"{self.node}: the record of {self.record} violates the expectation {self.expectation!r}; correct the "
            'expectation, or let it count such records with on_violation="count"'
        )


def _utc(time_ms: int) -> str:
    """For example ``2024-01-01T00:00:00Z``; milliseconds for a time that a datetime cannot hold."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{time_ms} ms"


PROGRAM, OLD_PROGRAM = "MODULE:APP", "OLD_MODULE:APP"
"""What messages write for a program, and for the one before it, if they know its application by the id alone."""
_PROGRAM = re.compile(r"\b(OLD_)?MODULE:APP\b")


def naming(text: str, *, program: str | None = None, old: str | None = None) -> str:
    """``text`` with ``module:attribute`` of the program, and of the one that ran before it, where they are given."""
    return _PROGRAM.sub(lambda found: (old if found[1] else program) or found[0], text)
