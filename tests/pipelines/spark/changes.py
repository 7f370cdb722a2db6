"""What may happen to the log of the topic ``sales`` beside an application that reads it."""

from __future__ import annotations

import json

from tests.pipelines.spark.inline import Place
from weir.state.commit.protocol import newest_commit

PARTITIONS = [("sales", 0), ("sales", 1)]


def made_anew(place: Place, count: int, partitions: int = 2) -> None:
    """Another topic of the same name, with ``count`` records of shops that the old one did not have."""
    place.topics.delete("sales")
    place.topics.ids["sales"] = "second"
    for topic, partition in PARTITIONS[:partitions]:
        place.topics.rows[topic, partition] = [
            (b"new-%d" % partition, json.dumps({"amount": 1}).encode(), 5_000) for _ in range(count)
        ]


def cut(place: Place, offset: int) -> None:
    """An unclean leader election: the second partition's new leader had its log up to ``offset``, and other records
    have come since."""
    rows = place.topics.rows["sales", 1]
    rows[offset:] = [(b"other", b'{"amount": 7}', 9_000)] * 100
    place.topics.leaders["sales", 1].append(offset)


def positions(place: Place) -> dict[int, int]:
    """Of the newest commit, by partition."""
    tasks = newest_commit(place.warehouse, "sales").tasks.values()
    return {partition: offset for task in tasks for partition, offset in task.positions["sales"].items()}
