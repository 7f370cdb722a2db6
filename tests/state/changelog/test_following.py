"""A user's own store that follows a changelog holds what the changelog says, whatever happened to it in between."""

from __future__ import annotations

import json
import pickle
import random
import sqlite3

import polars as pl
import pytest
from deltalake import DeltaTable

from tests.state.changelog import epochs as epochs_module
from tests.state.changelog.epochs import SPECS, TOTALS, run_epoch
from weir.state.changelog.following import PARTITION, Follower
from weir.state.changelog.rows import changelog_spec
from weir.state.commit.evolution import TOMBSTONE_HORIZON
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.commit.removal import remove_tables
from weir.state.commit.tables import AppendTable, read_rows, read_table
from weir.state.engine.task_store import TaskStore
from weir.state.errors import DeletionsGoneError, TableReplacedError
from weir.state.stores.custom import OffsetKeeper
from weir.state.types import StateId

TABLE = changelog_spec(TOTALS).name


class Totals:
    """Rows in a SQLite file; ``managed`` writes the offset in the same transaction."""

    name = "own_totals"

    def __init__(self, folder, managed):
        self.managed = managed
        self.file = sqlite3.connect(folder / "own.sqlite")
        self.file.execute("create table if not exists totals (key text primary key, value text)")
        self.file.execute("create table if not exists offsets (place text primary key, next integer)")

    def put_rows(self, rows):
        for row in rows.iter_rows(named=True):
            key = json.dumps([row["carrier"], row["id"]])
            if row["_deleted"]:
                self.file.execute("delete from totals where key = ?", [key])
            else:
                self.file.execute("insert or replace into totals values (?, ?)", [key, row["flights"]])

    def commit(self, offsets):
        if self.managed:
            for topic, of_topic in offsets.items():
                for partition, offset in of_topic.items():
                    self.file.execute("insert or replace into offsets values (?, ?)", [f"{topic} {partition}", offset])
        self.file.commit()

    def committed_offset(self, topic, partition):
        found = self.file.execute("select next from offsets where place = ?", [f"{topic} {partition}"]).fetchone()
        return found and found[0]

    def manages_offsets(self):
        return self.managed

    def approximate_num_uncommitted_bytes(self):
        return 0

    def rows(self):
        return {key: int(value) for key, value in self.file.execute("select key, value from totals")}


@pytest.fixture
def history(tmp_path):
    """Commits one more epoch of puts and deletes with each call."""
    app, rng = tmp_path / "warehouse" / "app", random.Random(3)
    committer = Committer(tmp_path / "warehouse", "app", [changelog_spec(spec) for spec in SPECS], fingerprint="f")
    committer.claim()
    store = TaskStore.create(tmp_path / "state", "0_0", [spec.name for spec in SPECS])
    epochs: list[int] = []

    def commit():
        epoch = len(epochs) + 1
        expected = StateId(1, epoch - 1) if epochs else None
        files = run_epoch(store, app, epoch, expected, rng)
        store.settle(generation=1, expected=StateId(1, epoch), committed=StateId(1, epoch))
        committer.commit(
            CommitRecord(
                kind="commit",
                generation=1,
                epoch=epoch,
                at_ms=0,
                fingerprint="f",
                tasks={"0_0": TaskCommit(state=StateId(1, epoch), instance="one")},
                files=tuple(files),
            )
        )
        epochs.append(epoch)

    yield app, commit
    committer.close()
    store.close()


def standing(app):
    rows = read_table(app / TABLE)
    return {
        json.dumps([carrier, number]): flights
        for carrier, number, flights in rows.select("carrier", "id", "flights").iter_rows()
    }


@pytest.mark.slow
@pytest.mark.parametrize("managed", [True, False])
def test_it_follows_commit_by_commit_even_after_it_was_closed_or_died(history, tmp_path, managed):
    app, commit = history
    follower = Follower(app, TOTALS, Totals(tmp_path, managed), tmp_path)
    follower.follow()
    for step in range(8):
        for _ in range(1 + step % 3):
            commit()
        if step % 4 == 2:  # dies with rows received but not committed
            follower._store.put_rows(
                read_table(app / TABLE).head(3).select("carrier", "id", flights="id", _deleted="_deleted")
            )
            follower._store.file.close()
            follower = Follower(app, TOTALS, Totals(tmp_path, managed), tmp_path)
        follower.follow()
        assert follower._store.rows() == standing(app)
    assert Totals(tmp_path, managed).rows() == standing(app)
    assert (tmp_path / "own_totals.checkpoint").exists() != managed


def test_an_offset_that_was_not_written_brings_rows_again_and_loses_none(history, tmp_path):
    """Killed between the store's commit and the position file."""
    app, commit = history
    commit()
    store = Totals(tmp_path, managed=False)
    Follower(app, TOTALS, store, tmp_path).follow()
    before = (tmp_path / "own_totals.checkpoint").read_text()
    table = DeltaTable(app / TABLE).metadata().id
    assert before == f"0\n2\n{TABLE}@ {PARTITION} 2\n{TABLE}@{table} {PARTITION} 2\n"
    commit()
    Follower(app, TOTALS, store, tmp_path).follow()
    (tmp_path / "own_totals.checkpoint").write_text(before)
    commit()
    Follower(app, TOTALS, store, tmp_path).follow()
    assert store.rows() == standing(app)


def test_a_store_that_was_away_while_deletions_were_dropped_is_told_to_start_over(history, tmp_path):
    app, commit = history
    commit()
    Follower(app, TOTALS, Totals(tmp_path, True), tmp_path).follow()
    commit()
    DeltaTable(app / TABLE).alter.set_table_properties({TOMBSTONE_HORIZON: "2"}, raise_if_not_exists=False)
    with pytest.raises(DeletionsGoneError, match=r"'own_totals' .* up to epoch 1, .* up to epoch 2; clear the store"):
        Follower(app, TOTALS, Totals(tmp_path, True), tmp_path).follow()
    (tmp_path / "new").mkdir()
    new = Totals(tmp_path / "new", True)
    Follower(app, TOTALS, new, tmp_path / "new").follow()
    assert new.rows() == standing(app)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("managed", [True, False])
def test_a_store_whose_changelog_was_removed_is_told_to_start_over_and_then_follows_the_new_one(
    history, tmp_path, managed, is_open
):
    app, commit = history
    follower = Follower(app, TOTALS, Totals(tmp_path, managed), tmp_path)
    commit()
    commit()
    follower.follow()
    row = read_rows(app / TABLE).filter(_deleted=False).head(1).with_columns(_epoch=pl.lit(3, pl.Int64))
    remove_tables(app, {TABLE: DeltaTable(app / TABLE).metadata().id})
    table = AppendTable.create(app, changelog_spec(TOTALS), "app")
    if not is_open:
        follower = Follower(app, TOTALS, Totals(tmp_path, managed), tmp_path)
    with pytest.raises(TableReplacedError, match=r"'own_totals' .* clear the store and its offset") as told:
        follower.follow()
    assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)
    table.append(3, [write_file(app, changelog_spec(TOTALS), row, {"task": "0_0", "segment": "0"})])
    with pytest.raises(TableReplacedError):
        follower.follow()
    (tmp_path / "own.sqlite").unlink()
    (tmp_path / "own_totals.checkpoint").unlink(missing_ok=True)
    cleared = Totals(tmp_path, managed)
    Follower(app, TOTALS, cleared, tmp_path).follow()
    assert len(cleared.rows()) == 1
    assert cleared.rows() == standing(app)


@pytest.mark.parametrize("managed", [True, False])
def test_an_offset_from_before_tables_were_told_apart_goes_on(history, tmp_path, managed):
    app, commit = history
    commit()
    store = Totals(tmp_path, managed)
    OffsetKeeper(store, tmp_path).commit({TABLE: {PARTITION: 2}})
    assert store.rows() == {}
    commit()
    Follower(app, TOTALS, store, tmp_path).follow()
    rows = read_rows(app / TABLE).filter(_epoch=2, _deleted=False)
    assert store.rows().keys() == {json.dumps(list(key)) for key in rows.select("carrier", "id").iter_rows()}
    commit()
    Follower(app, TOTALS, store, tmp_path).follow()
    assert store.committed_offset(f"{TABLE}@", PARTITION) == (4 if managed else None)


def test_segments_whose_epochs_another_writer_left_out_are_followed_in_order(tmp_path, history, monkeypatch):
    monkeypatch.setattr(epochs_module, "SEGMENT_EPOCHS", 2)
    app, commit = history
    for _ in range(7):
        commit()
    table = DeltaTable(app / TABLE)
    table.alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    table.optimize.compact()
    assert len(table.file_uris()) == 4
    store = Totals(tmp_path, managed=True)
    Follower(app, TOTALS, store, tmp_path).follow()
    assert store.rows() == standing(app)
    commit()
    Follower(app, TOTALS, store, tmp_path).follow()
    assert store.rows() == standing(app)
