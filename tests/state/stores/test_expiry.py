"""The index of what expires follows from the rows: a restored store has the same one as the store that was lost."""

from __future__ import annotations

import random

import polars as pl

from weir.state.changelog.restore import restore_task
from weir.state.changelog.rows import changelog_frame, changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.engine.task_store import EXPIRIES, TaskStore
from weir.state.stores.access import StoreTime
from weir.state.stores.kinds import store_of
from weir.state.stores.specs import key_value_spec, session_spec, versioned_spec
from weir.state.types import IsolationLevel, StateId, StoreClock

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
