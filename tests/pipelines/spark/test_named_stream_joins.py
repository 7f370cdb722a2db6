"""A join of streams keeps its state when a program changes around it, or gives it a name, another retention or output;
compared with all pairs of records that are close in time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from polars import col

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Int64, JoinWindows, StreamsBuilder, String
from weir.pipelines.spark.errors import TopologyChangedError
from weir.pipelines.topology.changes import Fate, SettingChange, compare
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows

MINUTE = timedelta(minutes=1)
NEAR = JoinWindows.of_time_difference_and_grace(10 * MINUTE, MINUTE)


@dataclass(frozen=True)
class Program:
    name: str | None = "bought"
    store: str | tuple[str, str] = "near"
    retention: timedelta | None = None
    filters: int = 0
    """Operators before the join, which use up running numbers."""
    moves: bool = False
    """Whether the left side's key changes, so that its records are sent on."""

    def application(self) -> Application:
        builder = StreamsBuilder()
        for _ in range(self.filters):
            builder.stream(f"more-{_}", key=String("user"), value=Int64("n")).filter(col("n") > 0)
        shown, clicked = (builder.stream(topic, key=String("user"), value=Int64(topic)) for topic in ("ads", "clicks"))
        if self.moves:
            shown = shown.select_key(user="user")
        shown.join(clicked, windows=NEAR, store=self.store, name=self.name, retention=self.retention).to_delta("out")
        return Application("shop", builder, commit_interval=timedelta(milliseconds=1))


def records(first: int, count: int, shift_ms: int = 0) -> list:
    """Records of three users, two minutes apart."""
    return [
        (b"user-%d" % (n % 3), n.to_bytes(8, "big", signed=True), n * 120_000 + shift_ms)
        for n in range(first, first + count)
    ]


def pairs(place: Place) -> list[tuple[str, int, int]]:
    """All records of one user that are at most ten minutes apart."""
    ads, clicks = place.topics.rows["ads", 0], place.topics.rows["clicks", 0]
    return sorted(
        (user.decode(), int.from_bytes(ad, "big"), int.from_bytes(click, "big"))
        for user, ad, at in ads
        for other, click, then in clicks
        if user == other and abs(at - then) <= 600_000
    )


def found(place: Place) -> list[tuple[str, int, int]]:
    return sorted(read_rows(place.warehouse / "shop" / "out").select("user", "ads", "clicks").rows())


@pytest.mark.parametrize("loses_disk", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Program(), Program(filters=2)),
        (Program(moves=True), Program(moves=True, filters=2)),
        (Program(name=None), Program()),
        (Program(), Program(name="other")),
        (Program(name=None, moves=True), Program(moves=True)),
        (Program(), Program(retention=60 * MINUTE)),
        (Program(store=("shown", "clicked")), Program(store=("shown", "clicked"), filters=1)),
        (Program(name=None), Program(store=("near-this-join-store", "near-other-join-store"))),
    ],
)
def test_a_join_of_streams_keeps_its_records_under_a_changed_program(tmp_path, before, after, loses_disk):
    topics = Topics({("ads", 0): records(0, 12), ("clicks", 0): records(0, 12, 60_000)})
    topics.rows |= {(f"more-{number}", 0): [] for number in range(2)}
    place = Place(before.application(), topics, tmp_path)
    place.run()
    for number, program in enumerate((after, before)):
        place.application = program.application()
        place.topics.rows["ads", 0] += records(12 + 4 * number, 4)
        place.topics.rows["clicks", 0] += records(12 + 4 * number, 4, 60_000)
        if loses_disk:
            for data in place.state_folder.glob("*/*/data.mdb"):
                data.unlink()
        place.run()
        assert found(place) == pairs(place)


def test_another_retention_is_shown_and_another_store_is_refused(tmp_path):
    place = Place(
        Program().application(), Topics({("ads", 0): records(0, 9), ("clicks", 0): records(0, 9, 60_000)}), tmp_path
    )
    place.run()
    longer = Program(retention=60 * MINUTE).application()
    change = compare(newest_commit(place.warehouse, "shop"), longer.topology, {0: 1})
    assert {each.fate for each in change.stores} == {Fate.GOES_ON}
    assert change.settings == tuple(
        SettingChange(store=f"near-{side}-join-store", setting="retention", before="0:21:00", now="1:00:00")
        for side in ("this", "other")
    )
    place.application = replace(Program(), store=("shown", "clicked")).application()
    with pytest.raises(TopologyChangedError, match=r"'near-this-join-store', which looks the same"):
        place.run()
