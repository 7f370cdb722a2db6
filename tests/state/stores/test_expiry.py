"""The index of what expires follows from the rows: a restored store has the same one as the store that was lost."""

from __future__ import annotations

import random

import polars as pl
import pytest

from weir.state.changelog.restore import restore_task
from weir.state.changelog.rows import changelog_frame, changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.engine.task_store import EXPIRIES, TaskStore
from weir.state.stores import expiry
from weir.state.stores.access import StoreTime
from weir.state.stores.expiry import ExpiryIndex
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.kinds import store_of
from weir.state.stores.specs import key_value_spec, session_spec, versioned_spec
from weir.state.types import IsolationLevel, StateId, StoreClock

N_VALUE = pl.Schema({"m": pl.Int64()})
USER, N = pl.Schema({"user": pl.String()}), pl.Schema({"n": pl.Int64()})
SPECS = (
    key_value_spec("lived", USER, N, ttl_ms=30),
    session_spec("sessions", USER, N, retention_ms=30),
    key_value_spec("clocked", USER, N, ttl_ms=30, expires_by=StoreClock.WALL_CLOCK),
    versioned_spec("versions", USER, N, history_ms=30),
)


def random_rows(rng: random.Random) -> pl.DataFrame:
    starts = [rng.randrange(100) for _ in range(12)]
    return pl.DataFrame(
        {
            "user": [rng.choice(["a", "b", "long" * 200]) for _ in starts],
            "window_start": starts,
            "window_end": [start + rng.randrange(5) for start in starts],
            "n": starts,
            "_ts": starts,
            "_deleted": [rng.random() < 0.3 for _ in starts],
        }
    )


def test_a_restored_store_knows_when_its_rows_expire(tmp_path):
    rng, app = random.Random(3), tmp_path / "warehouse" / "app"
    driver = Committer(tmp_path / "warehouse", "app", [changelog_spec(spec) for spec in SPECS], fingerprint="f")
    driver.claim()
    store = TaskStore.create(tmp_path / "one", "0_0", [spec.name for spec in SPECS])
    time, state = StoreTime(), None
    for epoch in range(1, 5):
        files = []
        time.now_ms = epoch * 20
        with store.session() as session:
            for spec in SPECS:
                rows = random_rows(rng)
                typed = store_of(spec, session, time)
                typed.put_rows(rows.cast({name: kind for name, kind in spec.key.items() if name in rows.columns}))
                typed.expire()
                changes = changelog_frame(spec, session).with_columns(_epoch=pl.lit(epoch, pl.Int64))
                files.append(write_file(app, changelog_spec(spec), changes, {"task": "0_0", "segment": "0"}))
            before, state = state, StateId(1, epoch)
            store.apply(
                session, state=state, expected=before, generation=1, plan_hash=str(epoch), make_receipt=lambda _: b""
            )
        store.settle(generation=1, expected=state, committed=state)
        driver.commit(
            CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=0, fingerprint="f", files=tuple(files))
        )
    restored = restore_task(
        app, tmp_path / "two", "0_0", SPECS, TaskCommit(state=state, instance="two"), state, generation=1, task_rows=[]
    )
    try:
        with (
            store.reader(IsolationLevel.READ_COMMITTED) as lost,
            restored.reader(IsolationLevel.READ_COMMITTED) as found,
        ):
            assert len(list(lost.scan(EXPIRIES))) > 10
            assert list(found.scan(EXPIRIES)) == list(lost.scan(EXPIRIES))
    finally:
        restored.close()
        store.close()
        driver.close()


def held_rows(store: TaskStore, spec) -> set[tuple[str, int]]:
    with store.reader(IsolationLevel.READ_UNCOMMITTED) as view:
        keys = [key for key, _ in view.scan(spec.name)]
        return set(KeyValueStore(spec, view).columns.decode(keys).rows())


@pytest.mark.parametrize("list_rows", [2, 32])
@pytest.mark.parametrize("is_shown", [False, True])
def test_rows_that_are_added_go_each_at_its_time_as_those_that_are_put_do(tmp_path, monkeypatch, list_rows, is_shown):
    """Earlier versions put them, and a restore has put some into the index too. An epoch that is rolled back leaves no
    trace."""
    monkeypatch.setattr(expiry, "LIST_ROWS", list_rows)
    rng = random.Random(list_rows)
    spec = key_value_spec("added", pl.Schema({"user": pl.String(), "n": pl.Int64()}), N_VALUE, ttl_ms=80)
    task = TaskStore.create(tmp_path / "one", "0_0", [spec.name])
    expected: dict[tuple[str, int], int] = {}
    """By key, the time."""
    clock_ms, number, state, committed = -(10**9), 0, None, None
    clocks: dict[str, int] = {}
    for epoch in range(1, 60):
        before, clocks_before = (dict(expected), clock_ms, number), dict(clocks)
        with task.session() as session:
            store = KeyValueStore(spec, session, StoreTime(clocks))
            for is_added in (True, rng.random() < 0.3):
                times = [5 * epoch + rng.randrange(-90, 30) for _ in range(rng.randrange(6))]
                users = ["long" * 200 if rng.random() < 0.1 else rng.choice("ab") for _ in times]
                numbers = list(range(number, number + len(times)))
                number += len(times)
                rows = pl.DataFrame(
                    {"user": users, "n": numbers, "m": times, "_ts": times},
                    schema={**spec.key, **spec.value, "_ts": pl.Int64()},
                )
                admitted = []
                for user, n, time_ms in zip(users, numbers, times, strict=True):
                    clock_ms = max(clock_ms, time_ms)
                    if time_ms > clock_ms - 80:
                        admitted.append(n)
                        expected[user, n] = time_ms
                if not is_added:
                    store.put_rows(rows)
                    continue
                assert sorted(store.add_rows(rows)["n"]) == admitted
                if admitted and rng.random() < 0.3:
                    again = rows.filter(pl.col("n") == admitted[0])
                    key, time_ms = store.columns.encode(again)[0], int(again["_ts"][0])
                    ExpiryIndex(spec, session).put([(key, time_ms)])
                if admitted and rng.random() < 0.2:  # as a restore does that goes on from a snapshot
                    gone = rows.filter(pl.col("n") == admitted[-1])
                    store.columns.delete(store.columns.encode(gone))
                    del expected[gone.select("user", "n").row(0)]
            assert {(key["user"], key["n"]) for key, _ in store.all()} == {
                key for key, time_ms in expected.items() if time_ms > clock_ms - 80
            }
            gone = {key for key, time_ms in expected.items() if time_ms <= clock_ms - 80}
            if is_shown:
                assert set(store.expire().select("user", "n").rows()) == gone
            else:
                store.forget_expired()
            expected = {key: time_ms for key, time_ms in expected.items() if key not in gone}
            last, state = state, StateId(1, epoch)
            task.apply(
                session,
                state=state,
                expected=last,
                generation=1,
                plan_hash=str(epoch),
                make_receipt=lambda _: b"",
            )
        assert held_rows(task, spec) == set(expected)
        if rng.random() < 0.3:
            task.settle(generation=1, expected=committed, committed=committed)
            (expected, clock_ms, number), clocks, state = before, clocks_before, committed
        else:
            task.settle(generation=1, expected=state, committed=state)
            committed = state
        assert held_rows(task, spec) == set(expected)
    with task.session() as session:
        store = KeyValueStore(spec, session, StoreTime({spec.name: 10**6}))
        store.forget_expired()
        assert [*session.scan(spec.name), *session.scan(EXPIRIES)] == []
    task.close()
