"""What a backfill swaps and leaves out, what it reads, when it is refused, and what the commands show."""

from __future__ import annotations

import json
import os
import time
from datetime import date, timedelta

import pytest
from typer.testing import CliRunner

from tests.pipelines.backfill.inline import Cluster
from tests.pipelines.spark.inline import Topics
from weir import (
    Application,
    Count,
    FailOnInvalidTimestamp,
    Int64,
    SessionWindows,
    StreamsBuilder,
    String,
    TimeWindows,
    UnlimitedWindows,
)
from weir.infra.control import ControlDatabase, this_host
from weir.infra.settings import Settings
from weir.pipelines.backfill.begin import begin_from_kafka
from weir.pipelines.backfill.errors import (
    HistoryLostError,
    NoCutError,
    NoDayOutputsError,
    TopicReplacedError,
)
from weir.pipelines.backfill.outputs import DayOutput, day_outputs
from weir.pipelines.backfill.ranges import cut_of, kafka_ranges, settled, whole_ranges
from weir.pipelines.backfill.shadow import ABANDONED_AFTER_S, Completion, Days, shadows
from weir.pipelines.cli.app import app as weir
from weir.pipelines.operations.compaction import compact_application
from weir.pipelines.operations.registry import register
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.types import BlobRef, StateId

DAY_MS = 24 * 3600 * 1000
DAYS = Days(first=date(1970, 1, 6), end=date(1970, 1, 8))
HOUR = timedelta(hours=1)


def clicks(*, timestamp=None):
    builder = StreamsBuilder()
    return builder, builder.stream("clicks", key=String("user"), value=Int64("at"), timestamp=timestamp)


def application(builder: StreamsBuilder) -> Application:
    return Application("clicking", builder)


def cut(**fields) -> CommitRecord:
    task = TaskCommit(state=StateId(1, 7), instance="i", positions={"clicks": {0: 9}})
    return CommitRecord(
        kind="commit", generation=1, epoch=7, at_ms=0, fingerprint="f", tasks={"clicks-0_0": task}, **fields
    )


@pytest.fixture
def topics() -> Topics:
    """One record per day, beginning with the second day."""
    return Topics({("clicks", 0): [(b"ann", b"1", (1 + number) * DAY_MS) for number in range(12)]})


def test_windows_and_facts_belong_to_days_and_outputs_that_include_earlier_days_do_not():
    builder, stream = clicks()
    grouped = stream.group_by_key()
    stream.to_delta("facts")
    grouped.windowed_by(TimeWindows.of_size_and_grace(HOUR, HOUR)).agg("hours", n=Count()).to_delta("by_hour")
    grouped.windowed_by(SessionWindows.of_inactivity_gap_and_grace(HOUR, 3 * HOUR)).agg("visits", n=Count()).to_delta(
        "by_visit"
    )
    grouped.windowed_by(UnlimitedWindows.of()).agg("ever", n=Count()).to_delta("by_ever")
    totals = grouped.agg("totals", n=Count())
    totals.to_delta("running")
    totals.to_stream().to_delta("changes")
    outputs = day_outputs(application(builder).topology)
    assert outputs.swapped == (
        DayOutput(table="facts", column="_ts"),
        DayOutput(table="by_hour", column="window_start"),
        DayOutput(table="by_visit", column="window_start"),
    )
    assert outputs.left_out.keys() == {"by_ever", "running", "changes"}
    assert "'totals'" in outputs.left_out["changes"]
    assert outputs.look_back_ms >= 4 * 3_600_000


def test_it_reads_from_the_first_record_of_the_days_less_the_margin_to_the_cut(topics):
    builder, stream = clicks()
    stream.to_delta("facts")
    program, cluster = application(builder), Cluster(topics)
    assert kafka_ranges(program, cluster, cut(), DAYS.start_ms) == {"clicks": {0: (4, 9)}}
    assert kafka_ranges(program, cluster, cut(), DAYS.start_ms - DAY_MS) == {"clicks": {0: (3, 9)}}
    assert kafka_ranges(program, cluster, cut(), 99 * DAY_MS) == {"clicks": {0: (9, 9)}}, "no record is that new"


def test_a_topic_that_was_made_anew_since_the_cut_is_refused(topics):
    builder, stream = clicks()
    stream.to_delta("facts")
    app, cluster, known = application(builder), Cluster(topics), cut(topic_ids={"clicks": "first", "gone": "x"})
    topics.ids["clicks"] = "first"
    kafka_ranges(app, cluster, known, DAYS.start_ms)
    whole_ranges(app, cluster, known)
    topics.ids["clicks"] = "second"
    with pytest.raises(TopicReplacedError, match=r"topic 'clicks' was deleted and recreated.*--from TOPIC=PATH"):
        kafka_ranges(app, cluster, known, DAYS.start_ms)
    with pytest.raises(TopicReplacedError):
        whole_ranges(app, cluster, known)
    kafka_ranges(app, cluster, cut(), DAYS.start_ms)


def test_days_whose_records_may_have_expired_are_refused(topics):
    builder, stream = clicks()
    stream.to_delta("facts")
    program = application(builder)
    assert kafka_ranges(program, Cluster(topics, oldest=3), cut(), DAYS.start_ms) == {"clicks": {0: (4, 9)}}
    with pytest.raises(HistoryLostError, match=r"partition 0, begins at offset 4 .* choose later days"):
        kafka_ranges(program, Cluster(topics, oldest=4), cut(), DAYS.start_ms)
    with pytest.raises(HistoryLostError):
        kafka_ranges(program, Cluster(topics, oldest=12), cut(), 99 * DAY_MS)


def test_days_are_refused_too_if_what_is_kept_begins_with_the_marker_of_a_transaction(topics):
    builder, stream = clicks()
    stream.to_delta("facts")
    program, log = application(builder), topics.rows["clicks", 0]
    log.insert(4, None)
    assert kafka_ranges(program, Cluster(topics, oldest=3), cut(), DAYS.start_ms) == {"clicks": {0: (5, 9)}}
    with pytest.raises(HistoryLostError, match="partition 0, begins at offset 4"):
        kafka_ranges(program, Cluster(topics, oldest=4), cut(), DAYS.start_ms)


def test_a_topic_whose_times_are_taken_from_a_column_is_read_from_its_beginning(topics):
    builder, stream = clicks(timestamp=FailOnInvalidTimestamp(of="at"))
    stream.to_delta("facts")
    program = application(builder)
    assert kafka_ranges(program, Cluster(topics), cut(), DAYS.start_ms) == {"clicks": {0: (0, 9)}}
    with pytest.raises(HistoryLostError):
        kafka_ranges(program, Cluster(topics, oldest=1), cut(), DAYS.start_ms)


def test_a_backfill_needs_a_commit_of_this_program_without_rows_under_way(tmp_path, topics):
    builder, stream = clicks()
    stream.to_delta("facts")
    program = application(builder)
    with pytest.raises(NoCutError, match="not committed anything; run it first"):
        begin_from_kafka(program, tmp_path, tmp_path, Cluster(topics), DAYS)
    blob = BlobRef(source="a", target="b", edge="e", state=StateId(1, 7), path="p", rows=1, size_bytes=1)
    for cut_here in (cut_of, settled):  # of days, and of everything
        with pytest.raises(
            NoCutError,
            match=r"under way.*wait until none are, which `weir status clicking` shows.*`weir stop clicking --drain`",
        ):
            cut_here(program, cut(pending_blobs=(blob,)))
    with pytest.raises(NoCutError, match="does not know topic 'clicks'; run this program first"):
        cut_of(program, CommitRecord(kind="commit", generation=1, epoch=7, at_ms=0, fingerprint="f"))


def test_an_application_with_nothing_but_running_totals_is_refused_with_the_way_out(tmp_path, topics):
    builder, stream = clicks()
    stream.group_by_key().agg("totals", n=Count()).to_delta("running")
    with pytest.raises(NoDayOutputsError, match=r"'running': it is a running table.*; compute all of it with"):
        begin_from_kafka(application(builder), tmp_path, tmp_path, Cluster(topics), DAYS)


_builder, _stream = clicks()
_stream.to_delta("facts")
clicking = application(_builder)


@pytest.fixture
def settings(tmp_path) -> Settings:
    """A folder whose application has committed."""
    settings = Settings(dir=tmp_path)
    register(settings, "clicking", f"{__name__}:clicking")
    driver = Committer(settings.warehouse, "clicking", [], fingerprint="f")
    driver.claim()
    driver.commit(cut())
    driver.close()
    return settings


def begun(settings: Settings, topics: Topics):
    return begin_from_kafka(clicking, settings.warehouse, settings.state_dir, Cluster(topics), DAYS)


def command(settings: Settings, *arguments: str):
    return CliRunner().invoke(weir, ["backfill", *arguments, "--dir", str(settings.dir)])


def states(settings: Settings) -> list[str]:
    return [row["state"] for row in json.loads(command(settings, "list", "clicking", "--json").stdout)]


@pytest.mark.slow
def test_the_list_tells_running_broken_off_and_complete_ones_apart(settings, topics):
    assert "has no backfills" in command(settings, "list", "clicking").stdout
    shadow, database = begun(settings, topics), ControlDatabase(settings.control_database_url)
    assert states(settings) == ["interrupted"]
    lease = database.acquire_lease(shadow.lease_name, owner="a test", pid=os.getpid(), host=this_host(), ttl_s=60)
    assert states(settings) == ["running"]
    refused = command(settings, "discard", "clicking", shadow.id)
    assert "is running; stop it with Ctrl-C" in refused.stderr
    database.release(lease)
    shadow.complete(Completion(records_in=5, seconds=0.1))
    assert states(settings) == ["complete"]
    assert "1970-01-06 to 1970-01-07" in command(settings, "list", "clicking").stdout
    assert command(settings, "discard", "clicking", shadow.id).exit_code == 0
    assert states(settings) == []
    assert f"backfill {shadow.id!r} of 'clicking'" in command(settings, "swap", "clicking", shadow.id).stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../_commits", "..", ".", "nothing"])
def test_only_backfills_can_be_discarded(settings, topics, name):
    begun(settings, topics)
    refused = command(settings, "discard", "clicking", name).stderr
    assert f"backfill {name!r} of 'clicking'" in refused
    assert "`weir backfill list clicking --dir " in refused
    assert (settings.warehouse / "clicking" / "_commits").exists()
    assert len(states(settings)) == 1


def test_compaction_removes_shadows_that_broke_off_a_day_ago_and_nothing_else(settings, topics):
    old, young, complete = (begun(settings, topics) for _ in range(3))
    complete.complete(Completion(records_in=5, seconds=0.1))
    long_ago = time.time() - ABANDONED_AFTER_S - 60
    for shadow in (old, complete):
        for file in shadow.folder.list():
            os.utime(shadow.folder.path / file.name, (long_ago, long_ago))
    old.state_folder.mkdir(parents=True)
    compact_application(settings, "clicking", is_dry_run=True)
    assert len(states(settings)) == 3
    compact_application(settings, "clicking")
    left = {shadow.id for shadow in shadows(settings.warehouse, settings.state_dir, "clicking")}
    assert left == {young.id, complete.id}
    assert not old.state_folder.exists()


def test_days_that_end_before_they_begin_are_refused(settings):
    refused = command(settings, "run", "clicking", "2024-05-03", "2024-05-03")
    assert "END 2024-05-03 is not after FIRST 2024-05-03" in refused.stderr
    assert refused.exit_code == 1


@pytest.mark.parametrize(
    ("days", "facts"),
    [
        (["2024-02-30"], ("FIRST", "2013-01-08", "'2024-02-30'")),
        (["2024-05-03", "tomorrow"], ("END", "2013-01-08", "'tomorrow'")),
    ],
)
def test_an_invalid_day_is_refused_in_one_sentence_that_shows_a_valid_one(settings, days, facts):
    refused = command(settings, "run", "clicking", *days)
    [sentence] = refused.stderr.strip().splitlines()
    assert sentence.startswith("weir: ")
    assert all(fact in sentence for fact in facts)
    assert refused.exit_code == 1


def test_a_single_day_ends_where_the_next_begins():
    assert str(Days(first=date(2024, 5, 3), end=date(2024, 5, 4))) == "2024-05-03"
    assert Days.of_ms(DAYS.start_ms, DAYS.end_ms) == DAYS
