"""Headers of what is held back, in runs: closed windows, time limits and joins with grace, against plain loops."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, BufferConfig, Int64, StreamsBuilder, String, Suppressed, TimeWindows
from weir.pipelines.dsl import joins, table_operations
from weir.pipelines.topology.joins import JoinBufferNode
from weir.pipelines.topology.nodes import AggregateNode, SuppressNode
from weir.state.commit.tables import read_table

WINDOW_MS, LIMIT_MS, GRACE_MS = 10, 20, 15
USERS = "abcdef"


class Killed(BaseException):
    """Stands for kill -9."""


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def application(*, headers: bool = True) -> Application:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=Int64("number"), headers=True)
    prices = builder.table(
        "prices", key=String("user"), value=Int64("price"), store="prices", history_retention=timedelta(hours=1)
    )
    unbounded = BufferConfig.unbounded()
    windowed = orders.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(ms(WINDOW_MS)))
    closed = windowed.count("by_window").suppress(Suppressed.until_window_closes(unbounded))
    closed.to_stream().to_delta("closed", headers=headers)
    newest = orders.to_table("newest").suppress(Suppressed.until_time_limit(ms(LIMIT_MS), unbounded).with_name("held"))
    newest.to_stream().to_delta("settled", headers=headers)
    orders.join(prices, grace=ms(GRACE_MS), store="waiting").to_delta("priced", headers=headers)
    return Application("held", builder, commit_interval=ms(1))


def sent(seed: int, count: int) -> dict:
    """Records of each user in one partition, each with a header of its own; times go up, sometimes by much."""
    chance, now = random.Random(seed), 1_000
    rows: dict = {("orders", 0): [], ("orders", 1): []}
    for number in range(count):
        now += chance.choice([0, 1, 2, 3, 30])
        user = chance.choice(USERS)
        rows["orders", USERS.index(user) % 2].append(
            (user.encode(), number.to_bytes(8, "big"), now, [("n", b"%d" % number)])
        )
    prices = {
        ("prices", partition): [(user.encode(), (1).to_bytes(8, "big"), 0) for user in USERS[partition::2]]
        for partition in (0, 1)
    }
    return rows | prices


def part(rows: dict, share: float) -> dict:
    return {
        at: partition[: round(len(partition) * share)] if at[0] == "orders" else partition
        for at, partition in rows.items()
    }


def headers_of(row: dict) -> tuple:
    return tuple((each["key"], each["value"]) for each in row["_headers"] or ())


def expected_windows(rows: dict) -> Counter:
    """User, start, count and the header of the last record of each window that its partition's time has closed."""
    found: Counter = Counter()
    for partition in (rows["orders", 0], rows["orders", 1]):
        windows: dict = {}
        for key, _, time_ms, headers in partition:
            windows.setdefault((key.decode(), time_ms // WINDOW_MS * WINDOW_MS), []).append(headers)
        found.update(
            (user, start, len(inside), tuple(inside[-1]))
            for (user, start), inside in windows.items()
            if start + WINDOW_MS <= partition[-1][2]
        )
    return found


def windows_of(place: Place) -> Counter:
    table = read_table(place.warehouse / "held" / "closed")
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return Counter(
        (row["user"], round((row["window_start"] - epoch) / ms(1)), row["count"], headers_of(row))
        for row in table.iter_rows(named=True)
    )


def assert_right(place: Place, rows: dict) -> None:
    assert windows_of(place) == expected_windows(rows)
    priced = [
        (row["number"], headers_of(row))
        for row in read_table(place.warehouse / "held" / "priced").iter_rows(named=True)
    ]
    assert Counter(priced) == Counter(
        (int.from_bytes(value, "big"), tuple(headers))
        for partition in (rows["orders", 0], rows["orders", 1])
        for _, value, time_ms, headers in partition
        if time_ms + GRACE_MS <= partition[-1][2]
    )
    settled = list(read_table(place.warehouse / "held" / "settled").iter_rows(named=True))
    assert len(settled) > 10
    assert all(headers_of(row) == (("n", b"%d" % row["number"]),) for row in settled)


@pytest.mark.parametrize("max_records", [5, 400])
@pytest.mark.parametrize("seed", range(3))
def test_all_that_was_held_back_has_its_own_headers(tmp_path, seed, max_records):
    rows = sent(seed, 150)
    topics = Topics(part(rows, 0.5), with_headers={"orders"})
    place = Place(application(), topics, tmp_path, max_records=max_records)
    place.run()
    topics.rows.update(rows)
    place.run()
    assert_right(place, rows)


@pytest.mark.parametrize("step", ["files written", "state written", "pivot appended"])
def test_after_a_kill_and_in_lost_stores_too(tmp_path, step):
    rows, times = sent(7, 150), Counter()
    topics = Topics(part(rows, 0.6), with_headers={"orders"})
    place = Place(application(), topics, tmp_path, max_records=9)

    def die(name: str) -> None:
        times[name] += 1
        if name == step and times[name] == 3:
            raise Killed

    with pytest.raises(Killed):
        place.run(die)
    place.run()
    shutil.rmtree(place.state_folder)
    topics.rows.update(rows)
    place.run()
    assert_right(place, rows)


def test_what_an_earlier_version_held_back_has_none_and_is_not_lost(tmp_path, monkeypatch):
    rows = sent(3, 150)
    topics = Topics(part(rows, 0.5), with_headers={"orders"})
    with monkeypatch.context() as earlier:
        earlier.setattr(AggregateNode, "keep_headers", lambda node: None)
        for kind in (SuppressNode, JoinBufferNode):
            earlier.setattr(kind, "has_headers", property(lambda node: False))
        for module in (joins, table_operations):
            earlier.setattr(module, "held_value", lambda parent, value: value)
        before = Place(application(headers=False), topics, tmp_path)
        before.run()
    closed_before = Counter({(*window[:3], ()): times for window, times in expected_windows(topics.rows).items()})
    topics.rows.update(rows)
    after = Place(application(), topics, tmp_path)
    after.run()
    known, expected = windows_of(after), expected_windows(rows)
    without = lambda windows: Counter(window[:3] for window in windows.elements())
    assert without(known) == without(expected), "each window once, with all its records"
    later = {window[3] for window in known - closed_before}
    assert later <= {(), *(window[3] for window in expected)}
    assert len(later) > 10
