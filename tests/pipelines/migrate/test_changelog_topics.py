"""Changelog topics whose records the brokers remove while they are read."""

from collections.abc import Callable

import polars as pl
import pytest

from tests.pipelines.migrate.topics_in_memory import Cluster, Reader
from weir.infra.kafka.raw_records import OffsetGoneError
from weir.pipelines.migrate.changelog_topics import ChangelogTopics

PLACE = ("visits-changelog", 0)
ROWS = [(b"a", b"1", 10), (b"b", b"2", 20), (b"a", b"3", 30), (b"c", b"4", 40), (b"d", b"5", 50)]


class ExpiringReader(Reader):
    """Removes what is before ``beginning`` once ``reads`` reads have been answered."""

    def __init__(self, cluster: Cluster, reads: int, beginning: int) -> None:
        super().__init__(*PLACE, cluster.rows[PLACE])
        self.cluster, self.reads, self.beginning = cluster, reads, beginning

    def read(self, start: int, end: int, *, max_bytes: int):
        if not self.reads:
            self.cluster.beginnings[PLACE] = self.beginning
        self.reads -= 1
        if start < self.cluster.beginnings.get(PLACE, 0):
            raise OffsetGoneError(*PLACE, start)
        return super().read(start, end, max_bytes=max_bytes)


def newest(cluster: Cluster, reader: Callable[..., Reader]) -> dict[bytes, bytes]:
    topics = ChangelogTopics(cluster=cluster, reader=reader)
    return dict(topics.newest(*PLACE, len(ROWS), keeps_versions=False).select("key", "value").iter_rows())


@pytest.mark.parametrize(
    ("reads", "beginning", "expected"),
    [
        (9, 0, {b"a": b"3", b"b": b"2", b"c": b"4", b"d": b"5"}),
        (0, 2, {b"a": b"3", b"c": b"4", b"d": b"5"}),
        (1, 4, {b"a": b"1", b"b": b"2", b"d": b"5"}),
        (0, 5, {}),
    ],
)
def test_records_that_expire_while_they_are_read_are_passed_over(reads, beginning, expected):
    cluster = Cluster(rows={PLACE: ROWS})
    assert newest(cluster, lambda *place: ExpiringReader(cluster, reads, beginning)) == expected


def test_records_that_expire_although_they_are_wanted_from_an_offset_on_are_missed():
    cluster = Cluster(rows={PLACE: ROWS})
    topics = ChangelogTopics(cluster=cluster, reader=lambda *place: ExpiringReader(cluster, 0, 3))
    with pytest.raises(OffsetGoneError):
        list(topics.read(*PLACE, len(ROWS), start=1))


def test_what_else_a_reader_raises_is_not_passed_over():
    class Broken(Reader):
        def read(self, start: int, end: int, *, max_bytes: int) -> pl.DataFrame:
            raise OSError("the connection is gone")

    with pytest.raises(OSError, match="the connection is gone"):
        newest(Cluster(rows={PLACE: ROWS}), lambda *place: Broken(*place, ROWS))
