"""A changed program is refused: each way out that the message names is typed as it stands, and afterwards the results
are those of a plain count over the records."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from tests.pipelines.backfill.inline import copy
from tests.pipelines.cli.typed import Answer, Terminal, opened
from tests.pipelines.spark.evolving import Click, clicks
from weir import Application, Count, Json, StreamsBuilder, String, TimeWindows
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table


def counts(*, by: str = "user", minutes: int = 1, store: str = "counts", id: str = "clicks") -> Application:
    """Counts of clicks by user or page, and minutes; the output is named after both."""
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click))
    windows = TimeWindows.of_size_with_no_grace(timedelta(minutes=minutes))
    stream.group_by(by).windowed_by(windows).agg(store, n=Count()).to_delta(f"{by}_{minutes}")
    return Application(id, builder, commit_interval=timedelta(milliseconds=1))


def counted(rows: list, by: str = "user", minutes: int = 1) -> dict[tuple[str, int], int]:
    """The same, in one loop over the records; windows by their start in ms."""
    size_ms = minutes * 60_000
    return dict(
        Counter(
            (key.decode() if by == "user" else json.loads(value)["page"], time_ms // size_ms * size_ms)
            for key, value, time_ms in rows
        )
    )


def written(terminal: Terminal, by: str = "user", minutes: int = 1, application: str = "clicks") -> dict:
    rows = read_table(terminal.warehouse / application / f"{by}_{minutes}")
    return {(who, start.timestamp() * 1_000): n for who, start, n in rows.select(by, "window_start", "n").iter_rows()}


def add(terminal: Terminal, count: int) -> None:
    """More records in partition 0."""
    rows = terminal.topics.rows["clicks", 0]
    rows += clicks(len(rows), count)


def all_rows(terminal: Terminal) -> list:
    return [row for rows in terminal.topics.rows.values() for row in rows]


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A folder in which ``clicks`` has counted 100 records by user and minute."""
    with pytest.MonkeyPatch.context() as patch:
        there = opened(tmp_path_factory.mktemp("template"), patch)
        there.topics.rows["clicks", 0] = clicks(0, 100)
        done = there.run(there.has("old", counts()))
        assert done.code == 0, done.text
    return there.folder


@pytest.fixture
def old(terminal, template) -> str:
    """Such a program, in a folder of its own; 40 records have come since."""
    copy(template, terminal.folder)
    terminal.topics.rows["clicks", 0] = clicks(0, 140)
    return terminal.has("old", counts())


OTHER_WINDOWS, OTHER_KEY = {"minutes": 2}, {"by": "page"}


@pytest.fixture
def refused(terminal, old):
    """``refused(**other)``: what ``weir run`` says to such a program; ``weir plan`` names the same commands."""

    def ask(**changed) -> Answer:
        other = terminal.has("other", counts(**changed))
        found, planned = terminal.run(other), terminal.weir(f"plan {other}")
        assert (found.code, planned.code) == (1, 3), found.text + planned.text
        assert "the store 'counts' would begin empty, without what was read so far" in found.text, found.text
        assert found.commands - planned.commands == {"reset clicks"}
        return found

    return ask


def test_another_id_reads_everything_from_the_beginning_beside_the_old_program(terminal, old, refused):
    text = refused(**OTHER_WINDOWS).text
    assert "run the old program" in text
    assert "another id" in text
    assert terminal.run(terminal.has("beside", counts(**OTHER_WINDOWS, id="other-id"))).code == 0
    assert written(terminal, **OTHER_WINDOWS, application="other-id") == counted(all_rows(terminal), **OTHER_WINDOWS)
    assert terminal.run(old).code == 0
    assert written(terminal) == counted(all_rows(terminal))


def test_a_reset_begins_again(terminal, refused):
    other = OTHER_KEY
    assert terminal.take("reset clicks", refused(**other)).code == 0
    assert terminal.run("programs:other").code == 0
    assert written(terminal, **other) == counted(all_rows(terminal), **other)


def computed_and_swapped_in(terminal: Terminal, refused: Answer, **other) -> None:
    made = terminal.take("backfill run MODULE:APP --everything", refused, MODULE="programs:other")
    assert made.code == 0, made.text
    assert written(terminal) == counted(clicks(0, 100)), "the live table is as it was"
    (swap,) = made.commands
    swapped = terminal.take(swap, made)
    assert swapped.code == 0, swapped.text
    assert written(terminal, **other) == counted(clicks(0, 100), **other)
    assert terminal.run("programs:other").code == 0
    assert written(terminal, **other) == counted(all_rows(terminal), **other)


def test_what_the_new_program_would_hold_is_computed_and_swapped_in(terminal, refused):
    computed_and_swapped_in(terminal, refused(**OTHER_WINDOWS), **OTHER_WINDOWS)


def test_an_accepted_loss_counts_what_is_read_from_then_on(terminal, refused):
    accept = "run MODULE:APP --accept-state-loss"
    done = terminal.take(accept, refused(**OTHER_WINDOWS), "--until-caught-up", MODULE="programs:other")
    assert done.code == 0, done.text
    assert written(terminal, **OTHER_WINDOWS) == counted(clicks(100, 40), **OTHER_WINDOWS)
    add(terminal, 30)
    assert terminal.run("programs:other").code == 0
    assert written(terminal, **OTHER_WINDOWS) == counted(clicks(100, 70), **OTHER_WINDOWS)


def test_a_store_with_another_key_begins_empty_if_the_loss_is_accepted(terminal, refused):
    accept = "run MODULE:APP --accept-state-loss"
    done = terminal.take(accept, refused(**OTHER_KEY), "--until-caught-up", MODULE="programs:other")
    assert done.code == 0, done.text
    assert written(terminal, **OTHER_KEY) == counted(clicks(100, 40), **OTHER_KEY)


def test_a_store_with_another_key_begins_empty_under_another_name(terminal, refused):
    assert refused(**OTHER_KEY).code == 1
    done = terminal.run(terminal.has("other", counts(**OTHER_KEY, store="renamed")))
    assert done.code == 0, done.text
    assert written(terminal, **OTHER_KEY) == counted(clicks(100, 40), **OTHER_KEY)


def test_a_store_with_another_key_is_computed_under_another_name(terminal, refused):
    found = refused(**OTHER_KEY)
    terminal.has("other", counts(**OTHER_KEY, store="renamed"))
    computed_and_swapped_in(terminal, found, **OTHER_KEY)


@pytest.fixture
def wider(terminal, old) -> Answer:
    """What a run says when the topic has another partition, with 20 records."""
    terminal.topics.rows["clicks", 1] = clicks(500, 20)
    found = terminal.run(old)
    assert "clicks: 2 partitions" in found.text, found.text
    return found


def test_with_more_partitions_an_accepted_loss_counts_what_is_read_from_then_on(terminal, old, wider):
    done = terminal.take("run MODULE:APP --accept-state-loss", wider, "--until-caught-up", MODULE=old)
    assert done.code == 0, done.text
    kept = counted(clicks(0, 100))
    assert written(terminal) == {**kept, **counted(clicks(100, 40) + clicks(500, 20))}, "the output keeps its rows"


def test_with_more_partitions_another_id_and_a_reset_read_all_of_them(terminal, old, wider):
    assert 'another id and read from the start, as in Application("other-id", ...)' in wider.text
    assert terminal.run(terminal.has("beside", counts(id="other-id"))).code == 0
    assert written(terminal, application="other-id") == counted(all_rows(terminal))
    assert terminal.take("reset clicks", wider).code == 0
    assert terminal.run(old).code == 0
    assert written(terminal) == counted(all_rows(terminal))


def test_a_store_that_looks_renamed_goes_on_under_the_name_that_the_message_gives(terminal, old):
    refused = terminal.run(terminal.has("other", counts(store="renamed")))
    (name,) = re.findall(r"if it is the same, call it '(\w+)'", refused.text)
    assert terminal.run(terminal.has("other", counts(store=name))).code == 0
    assert written(terminal) == counted(all_rows(terminal))


def split(*, store: str, repartitions: bool) -> Application:
    """Clicks by user, as the producers or a repartition divide them."""
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click))
    stream = stream.repartition(name="users") if repartitions else stream
    stream.group_by_key().agg(store, n=Count()).to_delta("users")
    return Application("clicks", builder, commit_interval=timedelta(milliseconds=1))


def add_by_number(terminal: Terminal, first: int, count: int) -> None:
    """Records that are placed by the number in the user's name."""
    for partition in (0, 1):
        terminal.topics.rows.setdefault(("clicks", partition), []).extend(
            row for row in clicks(first, count) if int(row[0].removeprefix(b"user-")) % 2 == partition
        )


@pytest.fixture
def misplaced(terminal) -> Answer:
    """What a run says to a repartition in front of a store; 10 records have come since."""
    add_by_number(terminal, 0, 40)
    assert terminal.run(terminal.has("old", split(store="users", repartitions=False))).code == 0
    add_by_number(terminal, 40, 10)
    other = terminal.has("other", split(store="users", repartitions=True))
    refused, planned = terminal.run(other), terminal.weir(f"plan {other}")
    assert (refused.code, planned.code) == (1, 3), planned.text
    assert "they do not use Kafka's default partitioner" in planned.text
    terminal.has("renamed", split(store="others", repartitions=True))
    return refused


def users(rows: list) -> dict[str, int]:
    return dict(Counter(key.decode() for key, _, _ in rows))


def users_written(terminal: Terminal) -> dict[str, int]:
    return dict(read_table(terminal.warehouse / "clicks" / "users").select("user", "n").iter_rows())


def test_without_the_repartition_misplaced_keys_go_on(terminal, misplaced):
    assert "leave the repartition out" in misplaced.text
    assert terminal.run("programs:old").code == 0
    assert users_written(terminal) == users(clicks(0, 50))


def test_behind_a_repartition_of_misplaced_keys_a_store_begins_empty_under_another_name(terminal, misplaced):
    accept = "run MODULE:APP --accept-state-loss"
    done = terminal.take(accept, misplaced, "--until-caught-up", MODULE="programs:renamed")
    assert done.code == 0, done.text
    assert users_written(terminal) == users(clicks(0, 40)) | users(clicks(40, 10))


def test_behind_a_repartition_of_misplaced_keys_a_store_is_computed_under_another_name(terminal, misplaced):
    made = terminal.take(
        "backfill run MODULE:APP --everything", misplaced, "--swap", "--yes", MODULE="programs:renamed"
    )
    assert made.code == 0, made.text
    done = terminal.run("programs:renamed")
    assert done.code == 0, done.text
    assert users_written(terminal) == users(clicks(0, 50))


def by_page() -> Application:
    """Counts of clicks by page, whose rows wait behind the repartition for records of the other partition."""
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click))
    stream.to_delta("facts")
    stream.group_by("page").count("pages").to_delta("pages")
    return Application("clicks", builder, commit_interval=timedelta(milliseconds=1))


def passed() -> Application:
    builder = StreamsBuilder()
    builder.stream("clicks", key=String("user"), value=Json(Click)).to_delta("passed")
    return Application("clicks", builder)


@pytest.fixture
def waiting(terminal, monkeypatch) -> Answer:
    """What a run says to a program without the repartition over which rows are on their way."""
    rows = terminal.topics.rows
    rows["clicks", 0], rows["clicks", 1] = clicks(0, 600)[::10], clicks(0, 600)
    stop_with_rows_under_way(terminal, terminal.has("old", by_page()))
    other = terminal.has("other", passed())
    refused, planned = terminal.run(other, "--accept-state-loss"), terminal.weir(f"plan {other}")
    assert (refused.code, planned.code) == (1, 3), planned.text
    assert refused.commands == planned.commands
    return refused


def stop_with_rows_under_way(terminal: Terminal, program: str) -> None:
    with terminal.typing_beside("stop clicks") as codes:
        done = terminal.weir(f"run {program} --set max_epoch_records=20")
    assert (done.code, codes) == (0, [0]), done.text
    assert newest_commit(terminal.warehouse, "clicks").pending_blobs


def pages_written(terminal: Terminal) -> dict[str, int]:
    return dict(read_table(terminal.warehouse / "clicks" / "pages").select("page", "count").iter_rows())


def pages_read(terminal: Terminal) -> dict[str, int]:
    """Of the records before the committed positions."""
    found: Counter[str] = Counter()
    for task in newest_commit(terminal.warehouse, "clicks").tasks.values():
        for partition, offset in task.positions.get("clicks", {}).items():
            found.update(
                json.loads(value)["page"] for _, value, _ in terminal.topics.rows["clicks", partition][:offset]
            )
    return dict(found)


def then_the_other_program_passes_on_what_is_left(terminal: Terminal) -> None:
    read, everything = sum(pages_read(terminal).values()), len(all_rows(terminal))
    done = terminal.run("programs:other")
    assert done.code == 0, done.text
    assert read_table(terminal.warehouse / "clicks" / "passed").height == everything - read


def test_rows_on_their_way_are_processed_by_a_stop_that_drains(terminal, waiting):
    assert pages_written(terminal) != pages_read(terminal)
    drain, days = "stop clicks --drain", f"backfill run {terminal.has('old', by_page())} 1970-01-01"
    assert drain in waiting.commands
    under_way = terminal.weir(days)
    assert (under_way.code, drain in under_way.commands) == (1, True), under_way.text
    waits = "committed rows that wait between tasks"
    assert waits in terminal.take("status clicks", under_way).text
    with terminal.typing_beside(drain) as codes:
        done = terminal.take("run MODULE:APP", waiting, "--set", "max_epoch_records=20", MODULE="programs:old")
    assert (done.code, codes) == (0, [0]), done.text
    assert pages_written(terminal) == pages_read(terminal)
    assert sum(pages_read(terminal).values()) < len(all_rows(terminal)), "it has not simply read everything"
    assert waits not in terminal.take("status clicks", under_way).text
    assert terminal.weir(days).code == 0
    then_the_other_program_passes_on_what_is_left(terminal)


def test_rows_on_their_way_are_processed_by_a_run_that_catches_up(terminal, waiting):
    assert terminal.take("run MODULE:APP --until-caught-up", waiting, MODULE="programs:old").code == 0
    assert pages_written(terminal) == pages_read(terminal)
    then_the_other_program_passes_on_what_is_left(terminal)


def test_rows_on_their_way_are_processed_before_a_return_to_kafka_streams(terminal, waiting):
    back = "migrate to-kafka-streams clicks streams --dry-run"
    refused = terminal.weir(back)
    assert (refused.code, "has rows on their way between its tasks" in refused.text) == (1, True), refused.text
    assert terminal.take("run MODULE:APP --until-caught-up", refused, MODULE="programs:old").code == 0
    done = terminal.weir(back)
    assert done.code == 0, done.text
    pages = len(pages_read(terminal))
    assert f"{pages} record" in done.text, done.text


def test_rows_on_their_way_are_processed_before_everything_is_swapped_in(terminal, waiting):
    """Before the backfill begins, and again before it is swapped in."""
    rows = terminal.topics.rows
    refused = terminal.weir("backfill run programs:other --everything")
    assert (refused.code, "are still under way" in refused.text) == (1, True), refused.text
    assert terminal.take("run MODULE:APP --until-caught-up", refused, MODULE="programs:old").code == 0
    made = terminal.weir("backfill run programs:other --everything")
    (swap,) = (each.replace("MODULE:APP", "programs:other") for each in made.commands)
    rows["clicks", 0] += clicks(600, 600)[::10]
    rows["clicks", 1] += clicks(600, 600)
    stop_with_rows_under_way(terminal, "programs:old")
    refused = terminal.weir(swap, "--yes")
    assert (refused.code, "are still under way" in refused.text) == (1, True), refused.text
    assert terminal.take("run MODULE:APP --until-caught-up", refused, MODULE="programs:old").code == 0
    done = terminal.weir(swap, "--yes")
    assert done.code == 0, done.text
    assert read_table(terminal.warehouse / "clicks" / "passed").height == len(all_rows(terminal))
