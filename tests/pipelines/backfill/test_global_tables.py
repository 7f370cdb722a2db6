"""A backfill has the rows of global tables as of when it began, in all its tasks and however often it is killed: its
outputs are those of a plain join with these rows."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.dying import KilledError, dying_at, signalled_at
from tests.forked import ended
from tests.pipelines.backfill.inline import (
    begun,
    begun_whole,
    copied,
    made_from_files,
    run_on,
    run_shadow,
)
from tests.pipelines.backfill.program import DAYS, archive, build_titled, give, readings, sensors, titled
from tests.pipelines.spark.inline import Place, Topics
from weir.pipelines.backfill import kept_topics
from weir.pipelines.backfill.errors import NoCutError
from weir.pipelines.backfill.everything import is_behind, swap_everything
from weir.pipelines.backfill.kept_topics import KeptReader, keep
from weir.pipelines.backfill.shadow import KEPT, Shadow, shadows
from weir.pipelines.backfill.swap import prepare, swap_at_rest
from weir.pipelines.tasks.epoch import EpochRunner
from weir.pipelines.tasks.global_table import shared_folder, shared_stores
from weir.pipelines.tasks.plan import Receipt, TaskPlan
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table
from weir.state.engine.shared_rows import newest_rows

pytestmark = pytest.mark.faults

SHARE = 0.6
RECORDS = 8
"""Per epoch and task, so that there are several of them."""
LEAST = 300
"""The threshold of the fixed program."""
AT_FIRST = (("kind-0", "zero"), ("kind-1", "one"))
BEFORE = (("kind-0", "nought"), ("kind-1", None), ("kind-2", "two"), ("kind-1", "first"))
SINCE = (("kind-0", None), ("kind-1", "late"), ("kind-2", "later"))
Titles = dict[str, str]


def tell(topics: Topics, changes: tuple[tuple[str, str | None], ...]) -> None:
    """Add records to the topic of the global table; each kind has its partition."""
    for kind, title in changes:
        value = None if title is None else title.encode()
        topics.rows["titles", int(kind[-1]) % 2].append((kind.encode(), value, 0))


def compact(topics: Topics) -> None:
    """What brokers do after a while: of each kind, only the newest record stays."""
    for partition in (0, 1):
        rows = topics.rows["titles", partition]
        newest = {row[0]: number for number, row in enumerate(rows) if row is not None}
        topics.rows["titles", partition] = [
            row if row is not None and newest[row[0]] == number else None for number, row in enumerate(rows)
        ]


def table(*changes: tuple[tuple[str, str | None], ...]) -> Titles:
    """The rows of the global table after these changes."""
    newest = dict(change for each in changes for change in each)
    return {kind: title for kind, title in newest.items() if title is not None}


def joined(rows: list, titles: Titles, least: int) -> Counter:
    """The plain model of the output ``titled``: sensor, value, title and time."""
    values = [(key.decode(), json.loads(value), time_ms) for key, value, time_ms in rows]
    return Counter(
        (sensor, value["value"], titles[value["kind"]], time_ms)
        for sensor, value, time_ms in values
        if value["kind"] in titles and value["value"] >= least
    )


def counted(rows: list, titles: Titles, least: int) -> dict[str, tuple[int, int]]:
    """The plain model of the output ``titles_read``: readings, and those that are high, by title."""
    found = dict[str, tuple[int, int]]()
    for _, content, _ in rows:
        value = json.loads(content)
        if (title := titles.get(value["kind"])) is not None:
            number, high = found.get(title, (0, 0))
            found[title] = number + 1, high + (value["value"] >= least)
    return found


def read(place: Place) -> list:
    """The readings that the live application has been given."""
    return [row for partition in (0, 1) for row in place.topics.rows["readings", partition]]


def outputs(place: Place) -> tuple[Counter, dict[str, tuple[int, int]]]:
    folder = place.warehouse / "sensors"
    rows = read_table(folder / "titled").select("sensor", "value", "title", "_ts")
    found = Counter((*row, round(at.timestamp() * 1000)) for *row, at in rows.iter_rows())
    totals = read_table(folder / "titles_read").select("title", "readings", "high")
    return found, {title: (number, high) for title, number, high in totals.iter_rows()}


def of_days(rows: list, *, inside: bool) -> list:
    return [row for row in rows if (DAYS.start_ms <= row[2] < DAYS.end_ms) is inside]


def days_wanted(place: Place) -> tuple[Counter, dict[str, tuple[int, int]]]:
    """The outputs after a swap of the days: these have the rows of ``BEFORE``, all else what the live run gave."""
    rows, live, then = read(place), table(AT_FIRST), table(AT_FIRST, BEFORE)
    inside, outside = of_days(rows, inside=True), of_days(rows, inside=False)
    return joined(inside, then, LEAST) + joined(outside, live, 500), counted(rows, live, 500)


def whole_wanted(place: Place) -> tuple[Counter, dict[str, tuple[int, int]]]:
    rows, then = read(place), table(AT_FIRST, BEFORE)
    return joined(rows, then, LEAST), counted(rows, then, LEAST)


def change(place: Place) -> None:
    """The table changes once the backfill has begun, and nobody can read any more what it was."""
    tell(place.topics, SINCE)
    compact(place.topics)


def swap(place: Place, shadow: Shadow) -> None:
    prepare(shadow)
    swap_at_rest(place.warehouse, titled, shadow.id)


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Place:
    """The live application has read a part of the readings, and its table has changed since."""
    place = sensors(tmp_path_factory.mktemp("template"), titled, share=SHARE)
    place.topics.rows |= {("titles", partition): [] for partition in (0, 1)}
    tell(place.topics, AT_FIRST)
    place.run()
    tell(place.topics, BEFORE)
    return place


@pytest.fixture
def place(template, tmp_path, monkeypatch) -> Place:
    monkeypatch.setattr(kept_topics, "READ_BYTES", 8)  # several files for each partition
    return replace(copied(template, tmp_path), max_records=RECORDS)


def test_days_have_the_rows_as_of_the_beginning_and_the_running_copy_stays(place, monkeypatch):
    """Though every plan comes to an executor that has lost its copy, once the topic has fewer records."""
    run = EpochRunner.run

    def anew(runner: EpochRunner, plan: TaskPlan) -> Receipt:
        runner.rest()
        shutil.rmtree(shared_folder(shadow.state_folder, "titles"), ignore_errors=True)
        return run(runner, plan)

    def on_step(step: str) -> None:
        if step == "files written":
            change(place)

    assert table(AT_FIRST, BEFORE) == {"kind-0": "nought", "kind-1": "first", "kind-2": "two"}
    live = shared_folder(place.state_folder, "titles")
    before = outputs(place)
    shadow = begun(place, DAYS, build_titled(LEAST))
    assert shadow.backfill.global_ranges == {"titles": {0: (0, 3), 1: (0, 3)}}
    with monkeypatch.context() as patch:
        patch.setattr(EpochRunner, "run", anew)
        run_shadow(place, shadow, build_titled(LEAST), on_step)
    assert outputs(place) == before
    with newest_rows(live, shared_stores("titles")) as rows:
        assert rows is not None
        assert rows.about.positions == {0: 1, 1: 1}
    assert not shadow.state_folder.exists()
    assert not (shadow.folder.path / KEPT).exists(), "a complete backfill of days does not need it any more"
    swap(place, shadow)
    assert outputs(place) == days_wanted(place)
    assert list(shadows(place.warehouse, place.folder / "shadows", "sensors")) == []


@pytest.mark.parametrize(("step", "number"), [("part kept", 1), ("part kept", 3), ("files written", 2), ("settled", 3)])
def test_one_of_days_that_dies_does_not_count_and_the_next_has_the_rows_as_of_its_own_beginning(place, step, number):
    before, dead = outputs(place), begun(place, DAYS, build_titled(LEAST))
    with pytest.raises(KilledError):
        run_shadow(place, dead, build_titled(LEAST), dying_at(step, number))
    assert dead.completion is None
    dead.remove()
    assert not dead.folder.path.exists()
    assert not dead.state_folder.exists()
    assert outputs(place) == before
    swap(place, run_shadow(place, begun(place, DAYS, build_titled(LEAST)), build_titled(LEAST)))
    assert outputs(place) == days_wanted(place)


@pytest.mark.parametrize("step", ["files written", "state written", "pivot appended", "table appended", "settled"])
def test_one_of_everything_reads_on_with_the_same_rows_though_it_dies(place, step):
    mended = build_titled(LEAST)
    shadow = run_shadow(place, begun_whole(place, mended), mended)
    change(place)
    give(place, 1.0)
    place.run()
    with pytest.raises(KilledError):
        run_on(place, shadow, mended, dying_at(step, 2))
    swapped = finished(place, shadow)
    assert swapped == whole_wanted(place)


def test_one_of_everything_whose_process_is_killed_reads_on_with_the_same_rows(place):
    mended = build_titled(LEAST)
    shadow = run_shadow(place, begun_whole(place, mended), mended)
    change(place)
    give(place, 1.0)
    place.run()
    assert ended(_killed, place.folder, place.topics.rows, shadow.id) == -signal.SIGKILL
    assert finished(place, shadow) == whole_wanted(place)


def _killed(folder: Path, rows: dict, backfill: str) -> None:
    """Read on in a process that is killed in its second commit."""
    place = Place(titled, Topics(rows), folder, max_records=RECORDS)
    shadow = Shadow.of(place.warehouse, folder / "shadows", "sensors", backfill)
    run_on(place, shadow, build_titled(LEAST), signalled_at("pivot appended", 2))


def finished(place: Place, shadow: Shadow) -> tuple[Counter, dict[str, tuple[int, int]]]:
    """The outputs once it has read on to its end and is swapped in; then the application goes on with its table as it
    is now, which is empty but for two titles."""
    mended = build_titled(LEAST)
    assert is_behind(mended, newest_commit(place.warehouse, "sensors"), newest_commit(shadow.warehouse, shadow.id))
    run_on(place, shadow, mended)
    swap_everything(place.warehouse, mended, shadow)
    assert not shadow.folder.path.exists()
    assert not shadow.state_folder.exists()
    found = outputs(place)
    place.application = mended
    place.topics.rows["readings", 0].append((b"sensor-0", b'{"value": 999, "kind": "kind-1"}', DAYS.end_ms))
    place.topics.rows["readings", 0].append((b"sensor-0", b'{"value": 999, "kind": "kind-0"}', DAYS.end_ms))
    place.run()
    assert outputs(place)[0] - found[0] == Counter([("sensor-0", 999, "late", DAYS.end_ms)])
    del place.topics.rows["readings", 0][-2:]
    return found


def test_the_records_may_come_from_files_and_the_rows_from_the_topic(place, tmp_path):
    path = tmp_path / "archive.parquet"
    archive(readings()).write_parquet(path)
    shadow = made_from_files(place, DAYS, path)
    swap(place, shadow)
    rows, live, then = read(place), table(AT_FIRST), table(AT_FIRST, BEFORE)
    wanted = joined(of_days(rows, inside=False), live, 500) + joined(of_days(readings(), inside=True), then, 500)
    assert outputs(place)[0] == wanted


def test_without_the_topic_of_a_global_table_it_is_refused_before_anything_is_made(place):
    for partition in (0, 1):
        del place.topics.rows["titles", partition]
    for begin in (lambda: begun(place, DAYS), lambda: begun_whole(place)):
        with pytest.raises(NoCutError, match="there is no topic 'titles'; create it first"):
            begin()
    assert list(shadows(place.warehouse, place.folder / "shadows", "sensors")) == []


def test_what_is_kept_is_read_from_any_offset_and_what_is_missing_is_missed(place):
    shadow = begun(place, DAYS)
    ranges = shadow.backfill.global_ranges
    assert not keep(shadow.folder, ranges, place.topics.reader, lambda step: None, lambda: True), "it was stopped"
    assert keep(shadow.folder, ranges, place.topics.reader, lambda step: None)
    reader, rows = KeptReader(shadow.folder, "titles", 0), place.topics.rows["titles", 0]
    for start in range(3):
        at, found = start, []
        while at < 3:
            part = reader.read(at, 3, until_time_ms=None, max_bytes=1)
            assert at < part.next_offset <= 3
            found, at = found + part.frame.rows(), part.next_offset
        assert found == [(*row, number) for number, row in enumerate(rows)][start:3]
    with pytest.raises(FileNotFoundError):
        reader.read(3, 9, until_time_ms=None, max_bytes=1)
