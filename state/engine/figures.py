"""What a task's stores measure about themselves: how long they take to write and to settle, and what LMDB holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Values:
    """Several values of one measure."""

    count: int = 0
    total: float = 0.0
    least: float = 0.0
    greatest: float = 0.0

    @classmethod
    def of(cls, value: float) -> Values:
        """A single one."""
        return cls(count=1, total=value, least=value, greatest=value)

    @classmethod
    def over(cls, values: np.ndarray) -> Values:
        """All of an array."""
        if len(values) < 2:
            return cls.of(float(values[0])) if len(values) else cls()
        return cls(
            count=len(values), total=float(values.sum()), least=float(values.min()), greatest=float(values.max())
        )

    def __add__(self, other: Values) -> Values:
        if not (self.count and other.count):
            return self if self.count else other
        return Values(
            count=self.count + other.count,
            total=self.total + other.total,
            least=min(self.least, other.least),
            greatest=max(self.greatest, other.greatest),
        )


@dataclass(frozen=True, kw_only=True)
class StoreFigures:
    """The figures of one store."""

    rows: int
    pages: int
    """Of the store's database."""
    depth: int
    """Of its tree of pages."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of a task's stores."""

    map_bytes: int = 0
    """How large the data file may become before the map grows."""
    used_bytes: int = 0
    readers: int = 0
    """Slots of read transactions in the lock file, of all processes."""
    rows: int = 0
    """Of all stores."""
    apply_ms: Values = field(default_factory=Values)
    """How long epochs took to be written, since this was asked last."""
    commit_ms: Values = field(default_factory=Values)
    """How long it took to let the stores know of a commit, likewise."""
    apply_ms_of: Mapping[str, Values] = field(default_factory=dict)
    """By store, its share of that."""
    commit_ms_of: Mapping[str, Values] = field(default_factory=dict)
    """By store; stores that share a transaction have it in common, those of the user's have their own."""
    stores: Mapping[str, StoreFigures] = field(default_factory=dict)


class Times:
    """The durations that a store has measured and not told yet."""

    def __init__(self) -> None:
        self.apply_ms, self.commit_ms = Values(), Values()
        self.apply_ms_of: dict[str, Values] = {}
        self.commit_ms_of: dict[str, Values] = {}

    def applied(self, seconds: float, of_stores: Mapping[str, float]) -> None:
        """An epoch was written."""
        self.apply_ms += Values.of(1000 * seconds)
        _add(self.apply_ms_of, of_stores)

    def committed(self, seconds: float, of_stores: Mapping[str, float]) -> None:
        """The stores have heard of a commit."""
        self.commit_ms += Values.of(1000 * seconds)
        _add(self.commit_ms_of, of_stores)


def _add(values: dict[str, Values], seconds: Mapping[str, float]) -> None:
    for store, took in seconds.items():
        values[store] = values.get(store, Values()) + Values.of(1000 * took)
