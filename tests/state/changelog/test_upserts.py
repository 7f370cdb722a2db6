"""Tables of upserts against a plain list of what was ever written: whatever is refreshed, merged, swapped or killed."""

from __future__ import annotations

import random
import tempfile
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.faults.dying import KilledError, dying_at
from tests.state.changelog.countries import UPDATES, Countries
from weir.state.changelog.compaction import Compaction
from weir.state.changelog.upserts import Upserts, refresh_at_rest
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import REPLACED_RETENTION, AppendTable, file_actions, read_rows, read_table
from weir.state.errors import SwapRefusedError, TableAheadError, TableModeError, TableSchemaError, UpsertsBusyError
from weir.state.types import TableSpec

AFTER_KEYS = {name: dtype for name, dtype in UPDATES.schema.items() if name not in UPDATES.keys}
STEPS = ("upserts written", "upserts replaced", "upserts cleaned")
KEYS = st.tuples(st.sampled_from(["ad", "be", "cz", "dk", None]), st.integers(2000, 2009))
ROWS = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 99)), max_size=12)
STEPS_OF_A_LIFE = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), ROWS),
        st.tuples(st.just("commit"), ROWS),
        st.tuples(st.just("refresh"), st.sampled_from(["", *STEPS])),
        st.tuples(st.just("compact"), st.booleans()),
        st.tuples(
            st.just("swap"), st.tuples(st.dictionaries(KEYS, st.integers(100, 199), max_size=8), st.integers(0, 4))
        ),
        st.tuples(st.just("start"), st.none()),
    ),
    max_size=14,
)


@settings(max_examples=examples(25))
@given(STEPS_OF_A_LIFE)
def test_a_table_shows_the_last_value_of_each_key_after_a_refresh_and_what_it_showed_before_until_then(life):
    with tempfile.TemporaryDirectory() as folder:
        there = Countries(Path(folder))
        upserts, shown = there.upserts(), {}
        for what, details in life:
            match what:
                case "commit":
                    there.commit(details)
                case "refresh" if details:
                    with suppress(KilledError):
                        there.upserts(dying_at(details)).refresh()
                    assert there.shown() in (shown, there.standing())
                    shown = there.shown()
                case "refresh":
                    upserts.refresh()
                    shown = there.standing()
                case "compact":
                    compaction = Compaction(
                        there.warehouse, "app", is_whole=True, tombstone_retention_ms=0 if details else 1 << 50
                    )
                    list(compaction.run(compaction.tables()))
                case "swap":
                    rows, back = details
                    with suppress(SwapRefusedError):
                        there.swap(rows, max(0, there.epoch - back))
                case "start":
                    there.start()
                    upserts = there.upserts()
            assert there.shown() == shown
        upserts.refresh()
        assert there.shown() == there.standing()
        versions = there.transactions()
        assert versions == sorted(versions)
        assert versions[-1] == there.promised()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("what", ["nothing yet", "some rows", "a swap"])
def test_a_refresh_that_dies_at_a_step_leaves_the_table_before_or_after_it_and_the_next_one_right(tmp_path, step, what):
    there = Countries(tmp_path)
    if what != "nothing yet":
        there.commit([(("ad", year), year) for year in range(2000, 2030)])
        there.upserts().refresh()
    before = there.shown()
    there.commit([(("ad", 2001), None), (("be", 2001), 5), (("ad", 2002), 6)])
    if what == "a swap":
        there.swap({("cz", 2000): 7}, there.epoch)
    with pytest.raises(KilledError):
        there.upserts(dying_at(step)).refresh()
    assert there.shown() == (before if step == "upserts written" else there.standing())
    there.start()
    there.upserts().refresh()
    assert there.shown() == there.standing()


def test_a_refresh_that_was_overtaken_writes_nothing_and_never_an_older_state_over_a_newer(tmp_path):
    there = Countries(tmp_path)
    there.commit([(("ad", 2000), 1)])
    newer = []

    def on_step(step: str) -> None:
        if step == "upserts written" and not newer:
            there.start()
            there.commit([(("ad", 2000), 2), (("be", 2000), 3)])
            newer.append(there.upserts().refresh())

    assert there.upserts(on_step).refresh() is None
    assert newer[0].epoch == there.epoch
    assert there.shown() == {("ad", 2000): 2, ("be", 2000): 3}
    versions = there.transactions()
    assert versions == [0, there.promised()]


def test_a_refresh_that_has_read_older_updates_than_the_table_shows_does_nothing(tmp_path, monkeypatch):
    there = Countries(tmp_path)
    there.commit([(("ad", 2000), 1)])
    older = there.upserts()
    before = DeltaTable(there.app / UPDATES.name)
    there.commit([(("ad", 2000), 2)])
    there.upserts().refresh()
    monkeypatch.setattr("weir.state.changelog.upserts.table_at", lambda folder: before)
    monkeypatch.setattr(older, "_clean", lambda: None)
    assert older.refresh() is None
    assert there.shown() == {("ad", 2000): 2}
    assert there.transactions() == [0, there.promised()]


@pytest.mark.parametrize("asleep_at", ["", "upserts written"])
def test_a_refresh_of_an_earlier_program_writes_nothing_once_the_tables_have_more_columns(tmp_path, asleep_at):
    there = Countries(tmp_path)
    there.commit([(("ad", 2000), 1)])
    more = replace(UPDATES, schema=pl.Schema({**UPDATES.schema, "last": pl.String()}))

    def overtaken(step: str) -> None:
        if step == asleep_at:
            later = Committer(there.warehouse, "app", (more,), fingerprint="g")
            generation = later.claim().generation
            rows = [("ad", 2000, 2, "a"), ("be", 2000, 3, "b")]
            frame = pl.DataFrame(rows, ["country", "year", "n", "last"], orient="row").with_columns(
                pl.lit(datetime.now(UTC)).alias("_ts"), _epoch=pl.lit(9), _seq=pl.int_range(2), _deleted=pl.lit(False)
            )
            files = (write_file(there.app, more, frame),)
            later.commit(
                CommitRecord(
                    kind="commit", generation=generation, epoch=9, at_ms=0, fingerprint="g", files=files, tasks={}
                )
            )

    older = there.upserts(overtaken)
    overtaken("")
    assert older.refresh() is None
    assert Upserts(there.app, more, "app").refresh().epoch == 9
    rows = read_rows(there.folder).sort("country").select("country", "n", "last").rows()
    assert rows == [("ad", 2, "a"), ("be", 3, "b")]


def test_a_refresh_is_one_entry_under_the_application_transaction_at_the_version_of_the_commit(tmp_path):
    there = Countries(tmp_path)
    upserts = there.upserts()
    there.commit([(("ad", 2000), 1)])
    there.commit([(("ad", 2000), 2), (("be", 2000), 3)])
    version = DeltaTable(there.folder).version()
    assert upserts.refresh().epoch == there.epoch
    table = DeltaTable(there.folder)
    assert table.version() == version + 1
    assert table.transaction_version("app") == there.promised()
    assert upserts.refresh() is None
    assert there.upserts().refresh() is None
    assert DeltaTable(there.folder).version() == version + 1


def test_a_reader_finds_key_and_value_columns_the_time_and_nothing_of_commits(tmp_path):
    there = Countries(tmp_path)
    there.commit([(("ad", 2000), 1), (("be", 2000), 2), (("be", 2000), None)])
    there.upserts().refresh()
    assert read_rows(there.folder).columns == ["country", "year", "n", "_ts"]
    assert read_table(there.folder).equals(read_rows(there.folder))
    assert read_rows(there.folder).drop("_ts").rows() == [("ad", 2000, 1)]


def test_only_files_that_hold_changed_keys_are_rewritten(tmp_path):
    there = Countries(tmp_path)
    upserts = there.upserts(rows_a_file=100, held_rows=10_000)
    there.commit([(("ad", year), year) for year in range(1000)])
    upserts.refresh()
    before = set(file_actions(DeltaTable(there.folder))["path"])
    assert len(before) == 10
    there.commit([(("ad", 5), 0), (("ad", 17), None), (("ad", 950), 0)])
    done = upserts.refresh()
    after = set(file_actions(DeltaTable(there.folder))["path"])
    assert (len(before - after), len(after - before), done.rows_written) == (2, 2, 199)
    assert there.shown() == there.standing()


def test_added_rows_are_merged_with_small_files_so_that_files_stay_few(tmp_path):
    there = Countries(tmp_path)
    upserts = there.upserts(rows_a_file=20, held_rows=10_000)
    for year in range(30):
        there.commit([(("ad", 3 * year + part), 0) for part in range(3)])
        upserts.refresh()
    files = file_actions(DeltaTable(there.folder))
    assert files["num_records"].sum() == 90
    assert files.filter(pl.col("num_records") < 10).height <= 1


def test_more_changes_than_fit_in_memory_are_merged_in_parts(tmp_path):
    there = Countries(tmp_path)
    rng = random.Random(3)
    there.commit([((rng.choice("abc"), rng.randrange(500)), value) for value in range(2_000)])
    upserts = there.upserts(rows_a_file=100, held_rows=200)
    upserts.refresh()
    assert there.shown() == there.standing()
    there.commit([((rng.choice("abc"), rng.randrange(500)), rng.choice([None, value])) for value in range(2_000)])
    upserts.refresh()
    assert there.shown() == there.standing()
    assert file_actions(DeltaTable(there.folder))["num_records"].max() <= 100


def test_deletions_that_compaction_has_dropped_are_gone_from_a_table_that_lay_behind(tmp_path):
    there = Countries(tmp_path)
    upserts = there.upserts()
    there.commit([(("ad", 2000), 1), (("be", 2000), 2)])
    upserts.refresh()
    there.commit([(("ad", 2000), None)])
    compaction = Compaction(tmp_path, "app", is_whole=True, tombstone_retention_ms=0)
    list(compaction.run(compaction.tables()))
    assert "ad" not in set(read_rows(there.app / UPDATES.name)["country"])
    upserts.refresh()
    assert there.shown() == {("be", 2000): 2}


def test_compaction_merges_the_updates_and_leaves_the_rows_that_are_shown_alone(tmp_path):
    there = Countries(tmp_path)
    upserts = there.upserts()
    for number in range(6):
        there.commit([(("ad", 2000), number), (("be", 2000 + number), number)])
        upserts.refresh()
    version = DeltaTable(there.folder).version()
    compaction = Compaction(tmp_path, "app", is_whole=True)
    assert compaction.tables() == ["_updates/countries", "countries"]
    updates, shown = list(compaction.run(compaction.tables()))[:2]
    assert (updates.rows_before, updates.rows_after, updates.files_after) == (12, 7, 1)
    assert (shown.files_before, shown.files_after) == (shown.files_after, shown.files_before)
    assert DeltaTable(there.folder).version() == version
    there.commit([(("be", 2003), None)])
    upserts.refresh()
    assert there.shown() == there.standing()


def test_replaced_files_are_deleted_once_readers_of_older_versions_had_their_time(tmp_path, monkeypatch):
    there = Countries(tmp_path)
    monkeypatch.setattr("weir.state.changelog.upserts.VACUUM_EVERY_S", 0.0)
    upserts = there.upserts()
    for number in range(5):
        there.commit([(("ad", 2000), number)])
        upserts.refresh()
    assert len(list(there.folder.glob("*.parquet"))) == 5
    (name,) = REPLACED_RETENTION
    assert DeltaTable(there.folder).metadata().configuration[name] == "interval 10 minutes"
    DeltaTable(there.folder).alter.set_table_properties({name: "interval 0 seconds"})
    there.commit([(("ad", 2000), 5)])
    upserts.refresh()
    assert len(list(there.folder.glob("*.parquet"))) == 1
    assert there.shown() == {("ad", 2000): 5}


def test_a_checkpoint_does_not_lose_sight_of_files_that_are_still_to_be_deleted(tmp_path, monkeypatch):
    there = Countries(tmp_path)
    monkeypatch.setattr("weir.state.commit.tables.CHECKPOINT_EVERY_VERSIONS", 3)
    monkeypatch.setattr("weir.state.changelog.upserts.VACUUM_EVERY_S", 3600.0)
    upserts = there.upserts()
    for number in range(10):
        there.commit([(("ad", 2000), number)])
        upserts.refresh()
    (name,) = REPLACED_RETENTION
    DeltaTable(there.folder).alter.set_table_properties({name: "interval 0 seconds"})
    for number in range(4):
        there.commit([(("ad", 2000), number)])
        upserts.refresh()
    assert (there.folder / "_delta_log" / "_last_checkpoint").exists()
    assert len(list(there.folder.glob("*.parquet"))) <= 3
    assert there.shown() == there.standing()


def test_a_refresh_that_fails_or_was_overtaken_leaves_no_files(tmp_path, monkeypatch):
    there = Countries(tmp_path)
    upserts = there.upserts(rows_a_file=10, held_rows=1_000)
    there.commit([(("ad", year), year) for year in range(50)])
    upserts.refresh()
    before, written = set(there.folder.glob("*.parquet")), []

    def full_disk(*arguments, **options):
        if len(written) == 2:
            raise OSError("no space left")
        written.append(write_file(*arguments, **options))
        return written[-1]

    there.commit([(("ad", year), 0) for year in range(50)])
    monkeypatch.setattr("weir.state.changelog.upserts.write_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        upserts.refresh()
    assert len(written) == 2
    assert set(there.folder.glob("*.parquet")) == before
    monkeypatch.undo()

    def overtake(step: str) -> None:
        if step == "upserts written":
            upserts.refresh()

    assert there.upserts(overtake, rows_a_file=10, held_rows=1_000).refresh() is None
    after = set(file_actions(DeltaTable(there.folder))["path"])
    assert set(there.folder.glob("*.parquet")) == before | {there.folder / path for path in after}
    assert there.shown() == there.standing()


def test_in_a_table_of_windows_only_the_newest_files_change_however_far_times_are(tmp_path):
    """Times after the year 9999 have no statistics, so their files are looked into."""
    day = 24 * 3600 * 1_000_000
    spec = TableSpec(
        name="_updates/days",
        keys=("country", "window_start"),
        schema=pl.Schema({"country": pl.String(), "window_start": pl.Datetime("ms", "UTC"), **AFTER_KEYS}),
    )
    driver = Committer(tmp_path, "app", (spec,), fingerprint="f")
    generation = driver.claim().generation
    upserts = Upserts(tmp_path / "app", spec, "app", rows_a_file=20)
    model: dict[tuple[str, int], int] = {}

    def commit(epoch: int, days: list[int]) -> set[str]:
        keys = [(country, number) for number in days for country in ("ad", "be", "cz", "dk")]
        model.update(dict.fromkeys(keys, epoch))
        rows = pl.DataFrame(
            {
                "country": [country for country, _ in keys],
                "window_start": pl.Series([number * day // 1000 for _, number in keys]).cast(pl.Datetime("ms", "UTC")),
                "n": epoch,
                "_ts": epoch,
                "_epoch": epoch,
                "_seq": range(len(keys)),
                "_deleted": False,
            }
        )
        file = write_file(tmp_path / "app", spec, rows)
        driver.commit(
            CommitRecord(kind="commit", generation=generation, epoch=epoch, at_ms=0, fingerprint="f", files=(file,))
        )
        upserts.refresh()
        table = DeltaTable(tmp_path / "app" / "days")
        shown = pl.read_delta(table).with_columns(pl.col("window_start").dt.timestamp("us") // day)
        assert {(country, number): n for country, number, n in shown.select("country", "window_start", "n").rows()} == (
            model
        )
        assert shown.height == len(model)
        return set(file_actions(table)["path"])

    before = commit(1, list(range(100)))
    after = commit(2, [98, 99, 100, 101])
    assert len(before & after) == len(before) - 1
    far = commit(3, [4_000_000, 4_000_001])
    assert len(after - far) <= 1
    assert commit(4, [4_000_001]) >= before & far
    commit(5, [3, 101, 4_000_000])


def test_others_that_keep_writing_are_named_after_a_few_attempts(tmp_path):
    there = Countries(tmp_path)
    there.commit([(("ad", 2000), 1)])

    def on_step(step: str) -> None:
        DeltaTable(there.folder).alter.set_table_properties({"x": "y"}, raise_if_not_exists=False)

    with pytest.raises(UpsertsBusyError, match=r"'countries'.*only the application does"):
        there.upserts(on_step).refresh()
    there.upserts().refresh()
    assert there.shown() == {("ad", 2000): 1}


def test_a_table_of_another_mode_or_with_other_columns_is_refused_at_the_claim(tmp_path):
    there = Countries(tmp_path)
    appended = TableSpec(name="countries", schema=UPDATES.schema, keys=UPDATES.keys)
    with pytest.raises(TableSchemaError):
        Upserts(there.app, TableSpec(name=UPDATES.name, schema=appended.schema, keys=("country",)), "app")
    other = Countries(tmp_path / "other")
    (other.app / "countries").rename(tmp_path / "aside")
    AppendTable.create(other.app, appended, "app")
    with pytest.raises(TableModeError, match='mode="append", but the program asks for mode="upsert"'):
        other.start()


def test_a_table_that_shows_commits_which_the_log_lacks_stops_a_claim(tmp_path):
    there = Countries(tmp_path)
    there.commit([(("ad", 2000), 1)])
    there.upserts().refresh()
    table = there.upserts()._table
    extra = write_file(there.app, TableSpec(name="countries", schema=table_schema()), read_rows(there.folder))
    table.refresh()
    table.write(there.promised() + 1, [extra])
    with pytest.raises(TableAheadError, match="'countries'"):
        there.start()


def table_schema() -> pl.Schema:
    return pl.Schema(
        {name: dtype for name, dtype in UPDATES.schema.items() if name not in ("_epoch", "_seq", "_deleted")}
    )


def test_refreshing_at_rest_brings_the_table_up_to_date_and_never_fails(tmp_path, caplog):
    there = Countries(tmp_path)
    there.commit([(("ad", 2000), 1)])
    refresh_at_rest(there.app, (UPDATES,), "app")
    assert there.shown() == {("ad", 2000): 1}
    there.commit([(("ad", 2000), 2)])
    for path in (there.app / UPDATES.name).glob("*.parquet"):
        path.unlink()
    refresh_at_rest(there.app, (UPDATES,), "app")
    assert "the next start tries again" in caplog.text
