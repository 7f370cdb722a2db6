"""Records as processors see them.

Annotations are objects here, not text: ``inspect`` looks up what text names in the module that a class says it is of,
which is ``weir``.
"""

from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from weir.pipelines.serdes.headers import Headers

K = TypeVar("K")
V = TypeVar("V")


class Record(msgspec.Struct, Generic[K, V], frozen=True):
    """A key, a value (None for a tombstone) and the event time, in UTC.

    Examples:
        >>> record = Record("ann", 5, datetime(2026, 1, 1, tzinfo=UTC))
        >>> record.with_value("five").value
        'five'
    """

    key: K
    value: V
    timestamp: datetime
    headers: Headers = ()
    """Pairs of a name and bytes or None, in order; none unless the stream has headers."""

    def with_key(self, key: Any) -> "Record[Any, V]":
        """A copy with another key."""
        return Record(key, self.value, self.timestamp, self.headers)

    def with_value(self, value: Any) -> "Record[K, Any]":
        """A copy with another value."""
        return Record(self.key, value, self.timestamp, self.headers)

    def with_timestamp(self, timestamp: datetime) -> "Record[K, V]":
        """A copy with another event time."""
        return Record(self.key, self.value, timestamp, self.headers)

    def with_headers(self, headers: Headers) -> "Record[K, V]":
        """A copy with these headers alone.

        Examples:
            >>> record = Record("ann", 5, datetime(2026, 1, 1, tzinfo=UTC), (("trace", b"17"),))
            >>> record.with_headers((*record.headers, ("seen", None))).headers
            (('trace', b'17'), ('seen', None))
        """
        return Record(self.key, self.value, self.timestamp, headers)


class FixedKeyRecord(msgspec.Struct, Generic[K, V], frozen=True):
    """A record whose key stays as it is. Programs make one only from another, by its methods."""

    key: K
    value: V
    timestamp: datetime
    headers: Headers = ()
    """As those of a ``Record``."""

    def with_value(self, value: Any) -> "FixedKeyRecord[K, Any]":
        """A copy with another value."""
        return FixedKeyRecord(self.key, value, self.timestamp, self.headers)

    def with_timestamp(self, timestamp: datetime) -> "FixedKeyRecord[K, V]":
        """A copy with another event time."""
        return FixedKeyRecord(self.key, self.value, timestamp, self.headers)

    def with_headers(self, headers: Headers) -> "FixedKeyRecord[K, V]":
        """A copy with these headers alone."""
        return FixedKeyRecord(self.key, self.value, self.timestamp, headers)


class RecordMetadata(NamedTuple):
    """Where a record was read."""

    topic: str
    partition: int
    offset: int
