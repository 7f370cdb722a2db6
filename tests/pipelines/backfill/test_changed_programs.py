"""Backfills of an application whose program has changed before, or changes with the swap."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated

import polars as pl
import pytest

from tests.faults.dying import KilledError, dying_at
from tests.pipelines.backfill.inline import begun_whole, made, output, run_shadow
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Count, Json, Last, StreamsBuilder, String, TimeWindows
from weir.pipelines.backfill.everything import swap_everything
from weir.pipelines.backfill.shadow import Days
from weir.pipelines.backfill.swap import prepare, swap_at_rest
from weir.pipelines.spark.coordinator import Coordinator
from weir.state.changelog.compaction import Compaction
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table

pytestmark = pytest.mark.faults

HOUR = timedelta(hours=1)
MAY_1 = int(datetime(2024, 5, 1, tzinfo=UTC).timestamp() * 1000)
MAY_2 = Days(first=date(2024, 5, 2), end=date(2024, 5, 3))


def clicks(first: int, count: int) -> list:
    """One an hour, by three users in turn."""
    return [(b"u%d" % (n % 3), b"page-%d" % n, MAY_1 + n * 3_600_000) for n in range(first, first + count)]


def application(builder: StreamsBuilder) -> Application:
    return Application("app", builder, commit_interval=timedelta(milliseconds=1))


def counts(**more) -> Application:
    """Clicks of each user."""
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=String("page"))
    stream.group_by_key().agg("users", n=Count(), **more).to_delta("u")
    return application(builder)


def hourly(**more) -> Application:
    """Clicks of each user by hour."""
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=String("page"))
    windows = TimeWindows.of_size_and_grace(HOUR, HOUR)
    stream.group_by_key().windowed_by(windows).agg("users", n=Count(), **more).to_delta("u")
    return application(builder)


def branches(*names: str, by_user: bool = True) -> Application:
    """Counts of clicks by user, some of them behind a repartition."""
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=String("page"))
    if by_user:
        stream.group_by_key().agg("users", n=Count()).to_delta("u")
    if names:
        grouped = stream.repartition(name="r").group_by_key()
        for name in names:
            grouped.agg(name, n=Count()).to_delta(f"of_{name}")
    return application(builder)


def of_users(rows: list) -> dict[str, int]:
    return dict(Counter(key.decode() for key, *_ in rows))


def changelog(place: Place, store: str) -> dict[str, int]:
    return dict(read_table(place.warehouse / "app" / "_changelog" / store).select("user", "n").rows())


def swap(place: Place, program: Application) -> None:
    swap_everything(place.warehouse, program, run_shadow(place, begun_whole(place, program), program))


def test_a_swap_of_everything_keeps_the_rows_of_stores_kept_aside(tmp_path):
    place = Place(branches("pages", "more"), Topics({("clicks", 0): clicks(0, 20)}), tmp_path)
    place.run()
    kept = of_users(place.topics.rows["clicks", 0])
    place.application = branches("pages")
    place.topics.rows["clicks", 0] += clicks(20, 5)
    place.run()
    assert list(newest_commit(place.warehouse, "app").topology.aside) == ["more"]
    swap(place, branches())
    assert list(newest_commit(place.warehouse, "app").topology.aside) == ["more"]
    assert changelog(place, "more") == kept
    assert changelog(place, "pages") == {}, "the new program computed everything, without this store"


def test_a_swap_of_everything_replaces_a_store_kept_aside_that_the_new_program_has_in_fewer_tasks(tmp_path):
    topics = Topics({("clicks", 0): clicks(0, 20), ("clicks", 1): clicks(20, 20)})
    place = Place(branches("more"), topics, tmp_path)
    place.run()
    place.application = branches()
    place.run()
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=String("page"))
    stream.repartition("r", partitions=1).group_by_key().agg("more", n=Count()).to_delta("of_more")
    swap(place, application(builder))
    assert dict(newest_commit(place.warehouse, "app").topology.aside) == {}
    assert changelog(place, "more") == of_users(topics.rows["clicks", 0] + topics.rows["clicks", 1])
    table = read_table(place.warehouse / "app" / "_changelog" / "more")
    assert {task.rpartition("_")[2] for task in table["task"]} == {"0"}


def test_days_are_swapped_in_after_the_output_has_got_a_column(tmp_path):
    place = Place(hourly(), Topics({("clicks", 0): clicks(0, 72)}), tmp_path)
    place.run()
    place.application = hourly(last=Last("page"))
    place.topics.rows["clicks", 0] += clicks(72, 24)
    place.run()
    before = dict(output(place, "u").select("window_start", "last").rows())
    shadow = made(place, MAY_2)
    prepared = prepare(shadow)
    assert "(0 removed, 24 changed, 0 added, 0 unchanged)" in str(prepared)
    swap_at_rest(place.warehouse, place.application, shadow.id)
    wanted = {
        start: f"page-{(start.timestamp() * 1000 - MAY_1) // 3_600_000:.0f}" if start.day == 2 else last
        for start, last in before.items()
    }
    assert None in wanted.values()
    assert dict(output(place, "u").select("window_start", "last").rows()) == wanted


class TooMuchError(Exception):
    """Raised by a review."""


def refuse(differences) -> None:
    raise TooMuchError(str(differences))


def grown() -> Application:
    """``counts`` with another column, another store and another output."""
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=String("page"))
    stream.group_by_key().agg("users", n=Count(), last=Last("page")).to_delta("u")
    stream.group_by("page").agg("pages", n=Count()).to_delta("p")
    return application(builder)


def tables(place: Place) -> dict[str, list[str]]:
    """The columns of every table."""
    folder = place.warehouse / "app"
    logs = [log.parent for pattern in ("*", "_changelog/*") for log in folder.glob(f"{pattern}/_delta_log")]
    return {
        str(table.relative_to(folder)): pl.scan_delta(table).collect_schema().names()
        for table in logs
        if table.name != "_commits"
    }


def counted(place: Place) -> dict[str, int]:
    return dict(output(place, "u").select("user", "n").rows())


def test_a_swap_of_everything_that_is_refused_changes_no_table_and_the_live_program_goes_on(tmp_path):
    place = Place(counts(), Topics({("clicks", 0): clicks(0, 20)}), tmp_path)
    place.run()
    before = tables(place)
    program = grown()
    shadow = run_shadow(place, begun_whole(place, program), program)
    with pytest.raises(TooMuchError, match="changed=3"):
        swap_everything(place.warehouse, program, shadow, review=refuse)
    assert tables(place) == before
    place.topics.rows["clicks", 0] += clicks(20, 5)
    place.run()
    assert counted(place) == of_users(clicks(0, 25))


def compact(place: Place) -> None:
    compaction = Compaction(place.warehouse, "app", is_whole=True, tombstone_retention_ms=0)
    list(compaction.run(compaction.tables()))


STEPS = ("claimed", "differences counted", "swap files written", "changelogs written")
AFTER = ("pivot appended", "table appended", "tables evolved", "settled")


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("step", [*STEPS, *AFTER])
def test_after_a_swap_that_dies_the_program_of_the_newest_commit_goes_on(tmp_path, step, is_compacted):
    place = Place(counts(), Topics({("clicks", 0): clicks(0, 20)}), tmp_path)
    place.run()
    program = grown()
    shadow = run_shadow(place, begun_whole(place, program), program)
    with pytest.raises(KilledError):
        swap_everything(place.warehouse, program, shadow, dying_at(step))
    is_swapped = newest_commit(place.warehouse, "app").fingerprint == program.topology.fingerprint
    assert is_swapped == (step in AFTER)
    if is_compacted:
        compact(place)
    place.application = program if is_swapped else counts()
    place.topics.rows["clicks", 0] += clicks(20, 1)  # of one user: the rows of the others stay as they were swapped in
    place.run()
    if is_compacted:
        compact(place)
    assert counted(place) == of_users(clicks(0, 21))
    if is_swapped:
        last = {key.decode(): page.decode() for key, page, _ in clicks(0, 21)}
        for table in (output(place, "u"), read_table(place.warehouse / "app" / "_changelog" / "users")):
            assert dict(table.select("user", "last").rows()) == last
        assert dict(output(place, "p").select("page", "n").rows()) == {f"page-{n}": 1 for n in range(21)}


@pytest.mark.parametrize("step", ["claim", "pivot appended", "tables evolved", "settled"])
def test_a_first_run_that_dies_before_a_commit_leaves_the_tables_to_the_program_before(tmp_path, step, monkeypatch):
    place = Place(counts(), Topics({("clicks", 0): clicks(0, 20)}), tmp_path)
    place.run()
    before = tables(place)
    place.application = grown()
    place.topics.rows["clicks", 0] += clicks(20, 5)
    with monkeypatch.context() as patch:
        if step == "claim":
            patch.setattr(Coordinator, "commit", lambda *arguments: dying_at("commit")("commit"))
        with pytest.raises(KilledError):
            place.run(dying_at(step))
    is_new = newest_commit(place.warehouse, "app").fingerprint == grown().topology.fingerprint
    assert is_new == (step != "claim")
    if not is_new:
        assert tables(place) == before
        place.application = counts()
    place.run()
    assert counted(place) == of_users(clicks(0, 25))


@dataclass(frozen=True)
class Narrow:
    ms: Annotated[Decimal, pl.Decimal(12, 2)]


@dataclass(frozen=True)
class Wide:
    ms: Annotated[Decimal, pl.Decimal(14, 2)]


def of_type(value: type) -> Application:
    """The last value of each user; only the changelog may get a wider type."""
    builder = StreamsBuilder()
    builder.table("clicks", key=String("user"), value=Json(value), store="users").to_delta(f"of_{value.__name__}")
    return application(builder)


def amounts(first: int, count: int) -> list:
    return [(b"u%d" % (n % 3), b'{"ms": "%d.25"}' % n, MAY_1 + n * 1000) for n in range(first, first + count)]


def last_amounts(place: Place) -> dict[str, Decimal]:
    return dict(read_table(place.warehouse / "app" / "_changelog" / "users").select("user", "ms").rows())


OF_25 = {f"u{n % 3}": Decimal(f"{n}.25") for n in range(25)}


@pytest.mark.parametrize("step", ["commit", "pivot appended", "tables evolved", "settled"])
def test_a_first_run_that_widens_a_store_and_dies_leaves_it_to_the_program_of_the_newest_commit(
    tmp_path, step, monkeypatch
):
    place = Place(of_type(Narrow), Topics({("clicks", 0): amounts(0, 20)}), tmp_path)
    place.run()
    place.application = of_type(Wide)
    place.topics.rows["clicks", 0] += amounts(20, 5)
    with monkeypatch.context() as patch:
        if step == "commit":
            patch.setattr(Coordinator, "commit", lambda *arguments: dying_at("commit")("commit"))
        with pytest.raises(KilledError):
            place.run(dying_at(step))
    is_new = newest_commit(place.warehouse, "app").fingerprint == of_type(Wide).topology.fingerprint
    assert is_new == (step != "commit")
    place.application = of_type(Wide if is_new else Narrow)
    place.run()
    assert last_amounts(place) == OF_25


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("step", [*STEPS, *AFTER])
def test_a_swap_that_widens_a_store_and_dies_leaves_it_to_the_program_of_the_newest_commit(
    tmp_path, step, is_compacted
):
    place = Place(of_type(Narrow), Topics({("clicks", 0): amounts(0, 20)}), tmp_path)
    place.run()
    program = of_type(Wide)
    shadow = run_shadow(place, begun_whole(place, program), program)
    with pytest.raises(KilledError):
        swap_everything(place.warehouse, program, shadow, dying_at(step))
    if is_compacted:
        compact(place)
    place.application = program if step in AFTER else of_type(Narrow)
    place.topics.rows["clicks", 0] += amounts(20, 5)
    place.run()
    assert last_amounts(place) == OF_25
