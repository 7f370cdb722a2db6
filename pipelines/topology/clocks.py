"""Which of a task's clocks belong to which stores.

An operator's clocks have the name of its store, that name behind a prefix that ends with a colon, or the names of the
stores of both sides of a join with ``&`` in between. Store names have neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

OF_TOPICS = ("_merge:", "_merged:", "_partition_time:")
"""What the clocks of topics begin with; a topic may have the name of a store."""


def clocks_of(stores: Collection[str], clocks: Mapping[str, int]) -> dict[str, int]:
    """Those of ``clocks`` that belong to one of ``stores``."""
    return {name: time_ms for name, time_ms in clocks.items() if not _stores_of(name).isdisjoint(stores)}


def _stores_of(clock: str) -> set[str]:
    return set() if clock.startswith(OF_TOPICS) else set(clock.rpartition(":")[2].split("&"))
