"""Stores whose rows expire: a snapshot with the changelog since equals the lost store, its index of expiry too."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from weir.state.changelog.restore import RestoreProgress, restore_task
from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_frame, changelog_spec
from weir.state.changelog.snapshot import publish_snapshot
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, SnapshotRef, TaskCommit
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.session import EpochSession
from weir.state.engine.task_store import RESERVED_STORES, TaskStore
from weir.state.stores.access import StoreTime
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.session import SessionStore
from weir.state.stores.specs import key_value_spec, session_spec, versioned_spec
from weir.state.stores.timers import TimerStore, timer_spec
from weir.state.stores.versioned import VersionedStore
from weir.state.types import IsolationLevel, StateId, StoreClock

KEY, VALUE = pl.Schema({"user": pl.String()}), pl.Schema({"n": pl.Int64()})
BY_STREAM = key_value_spec("by_stream", KEY, VALUE, ttl_ms=60)
BY_WALL = key_value_spec("by_wall", KEY, VALUE, ttl_ms=60, expires_by=StoreClock.WALL_CLOCK)
SESSIONS = session_spec("sessions", KEY, VALUE, retention_ms=60)
VERSIONS = versioned_spec("versions", KEY, VALUE, history_ms=60)
TIMERS = timer_spec("timers", KEY)
SPECS = (BY_STREAM, BY_WALL, SESSIONS, VERSIONS, TIMERS)
USERS = ["ann", "bob", "", "a\x00b", "long" * 200, "long" * 200 + "er"]
EPOCHS = 12


def change(session: EpochSession, time: StoreTime, chance: random.Random) -> None:
    """Puts and deletions of an epoch, some late, and what has expired."""
    by_stream, by_wall = KeyValueStore(BY_STREAM, session, time), KeyValueStore(BY_WALL, session, time)
    sessions, versions = SessionStore(SESSIONS, session, time), VersionedStore(VERSIONS, session, time)
    timers = TimerStore(TIMERS, session)
    for _ in range(12):
        user, n, at_ms = chance.choice(USERS), chance.randrange(99), max(0, time.now_ms - chance.randrange(70))
        row = None if chance.random() < 0.3 else n
        match chance.randrange(5):
            case 0:
                by_stream.put(user, row, at_ms)
            case 1:
                by_wall.put(user, row)
            case 2:
                sessions.put(user, row, at_ms - at_ms % 20, at_ms - at_ms % 20 + chance.choice([0, 7, 40]), at_ms)
            case 3:
                versions.put(user, row, at_ms)
            case 4 if row is None:
                timers.cancel(user)
            case 4:
                timers.set(user, at_ms)
    for store in (by_stream, by_wall, versions):
        store.expire()
    sessions.forget_expired()
    timers.take(time.now_ms - 50)


def content(store: TaskStore) -> dict[str, list[tuple[bytes, bytes]]]:
    with store.reader(IsolationLevel.READ_COMMITTED) as reader:
        return {name: list(reader.scan(name)) for name in (*RESERVED_STORES, *(spec.name for spec in SPECS))}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_snapshot_and_the_changelog_since_equal_the_lost_store(tmp_path, seed):
    chance, app = random.Random(seed), tmp_path / "warehouse" / "app"
    driver = Committer(tmp_path / "warehouse", "app", [changelog_spec(spec) for spec in SPECS], fingerprint="f")
    driver.claim()
    names, folder = [spec.name for spec in SPECS], tmp_path / "state" / "0_0" / "one"
    TaskStore.create(folder, "0_0", names).close()
    store = TaskStoreCache.get(folder, "0_0", names)
    time, expected, snapshots = StoreTime(), None, list[SnapshotRef]()
    for epoch in range(1, EPOCHS + 1):
        time.now_ms += chance.choice([0, 5, 30, 80])
        state = StateId(1, epoch)
        with store.session() as session:
            change(session, time, chance)
            files = epoch_files(app, epoch, session)
            assert store.apply(
                session,
                state=state,
                expected=expected,
                generation=1,
                plan_hash=str(epoch),
                make_receipt=lambda _: b"done",
            )
        driver.commit(CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=0, fingerprint="f", files=files))
        store.settle(generation=1, expected=state, committed=state)
        expected = state
        if (snapshot := publish_snapshot(app, store.folder, "0_0")) is not None and epoch < EPOCHS:
            snapshots.append(snapshot)
    driver.close()
    lost = content(store)
    TaskStoreCache.close_all()
    assert lost["_expiries"]
    for number, snapshot in enumerate([None, *snapshots]):
        assert restored(app, tmp_path / f"new {number}", snapshot) == lost


def test_a_snapshot_of_before_rows_expired_is_not_used(tmp_path):
    """A store that has got a ttl since has no index in it; the changelog alone gives one."""
    app, folder, state = tmp_path / "warehouse" / "app", tmp_path / "state" / "0_0" / "one", StateId(1, 1)
    driver = Committer(tmp_path / "warehouse", "app", [changelog_spec(spec) for spec in SPECS], fingerprint="f")
    driver.claim()
    names = [spec.name for spec in SPECS]
    TaskStore.create(folder, "0_0", names).close()
    store, lasting = TaskStoreCache.get(folder, "0_0", names), replace(BY_STREAM, retention_ms=None)
    with store.session() as session:
        KeyValueStore(lasting, session).put("ann", 1, 5)
        files = epoch_files(app, 1, session)
        store.apply(session, state=state, expected=None, generation=1, plan_hash="1", make_receipt=lambda _: b"done")
    driver.commit(CommitRecord(kind="commit", generation=1, epoch=1, at_ms=0, fingerprint="f", files=files))
    store.settle(generation=1, expected=state, committed=state)
    snapshot = publish_snapshot(app, folder, "0_0")
    driver.close()
    TaskStoreCache.close_all()
    seen = list[RestoreProgress]()
    commit = TaskCommit(state=state, instance="new", snapshot=snapshot)
    options = {"generation": 5, "task_rows": [], "on_progress": seen.append}
    found = restore_task(app, tmp_path / "new", "0_0", SPECS, commit, state, **options)
    assert "is of a time when rows of 'by_stream' did not expire; the changelog alone is read" in seen[-1].source
    with found.session() as session:
        expiring = KeyValueStore(BY_STREAM, session, StoreTime(clocks={"by_stream": 1_000}))
        assert expiring.expire()["user"].to_list() == ["ann"]
    found.close()


def epoch_files(app: Path, epoch: int, session: EpochSession) -> tuple:
    partition = {"task": "0_0", "segment": str(epoch // SEGMENT_EPOCHS)}
    frames = [(spec, changelog_frame(spec, session).with_columns(_epoch=pl.lit(epoch))) for spec in SPECS]
    return tuple(write_file(app, changelog_spec(spec), rows, partition) for spec, rows in frames if rows.height)


def restored(app: Path, folder: Path, snapshot: SnapshotRef | None) -> dict[str, list[tuple[bytes, bytes]]]:
    state, seen = StateId(1, EPOCHS), list[RestoreProgress]()
    store = restore_task(
        app,
        folder,
        "0_0",
        SPECS,
        TaskCommit(state=state, instance="new", snapshot=snapshot),
        state,
        generation=5,
        task_rows=[],
        on_progress=seen.append,
    )
    assert seen[-1].from_snapshot is (snapshot is not None)
    try:
        return content(store)
    finally:
        store.close()
