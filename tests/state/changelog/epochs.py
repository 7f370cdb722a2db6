"""Random epochs of a task with two stores, and what its store then holds."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl

from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_frame, changelog_spec
from weir.state.commit.files import write_file
from weir.state.engine.task_store import LONG_KEYS, TASK_STORE, TaskStore
from weir.state.stores.typed import TypedStore
from weir.state.types import IsolationLevel, StateId, StoreKind, StoreSpec

TIME = pl.Datetime("ms", "UTC")


TOTALS = StoreSpec(
    name="totals",
    key=pl.Schema({"carrier": pl.String(), "id": pl.Int64()}),
    value=pl.Schema({"flights": pl.Int64(), "mean": pl.Float64()}),
)


WINDOWS = StoreSpec(
    name="windows",
    key=pl.Schema({"k": pl.String(), "window_start": TIME, "window_end": TIME}),
    value=pl.Schema({"last": pl.String()}),
    kind=StoreKind.WINDOW,
)


SPECS = (TOTALS, WINDOWS)


def epoch_rows(rng: random.Random) -> tuple[pl.DataFrame, pl.DataFrame]:
    totals = pl.DataFrame(
        {
            "carrier": [rng.choice(["UA", "AA", None, "long" * 200]) for _ in range(20)],
            "id": [rng.randrange(8) for _ in range(20)],
            "flights": [rng.randrange(99) for _ in range(20)],
            "mean": [rng.choice([None, rng.random()]) for _ in range(20)],
            "_ts": [rng.randrange(10**12) for _ in range(20)],
        },
        schema_overrides={"mean": pl.Float64},
    )
    start = [rng.randrange(6) * 1000 for _ in range(10)]
    windows = pl.DataFrame(
        {
            "k": [f"k{rng.randrange(3)}" for _ in range(10)],
            "window_start": start,
            "window_end": [at + 1000 for at in start],
            "last": [str(rng.random()) for _ in range(10)],
            "_ts": start,
        }
    )
    return totals, windows.cast({"window_start": TIME, "window_end": TIME})


def run_epoch(store: TaskStore, app: Path, epoch: int, expected: StateId | None, rng: random.Random) -> list:
    """Puts, deletes and a sweep of old windows; returns the changelog files of the epoch."""
    with store.session() as session:
        for spec, rows in zip(SPECS, epoch_rows(rng), strict=True):
            typed = TypedStore(spec, session)
            keys = typed.encode(rows)
            typed.write(keys, rows)
            typed.delete(rng.sample(keys, 5))
        windows = TypedStore(WINDOWS, session)
        closed, _ = windows.scan(upper=windows.window_upper(2000))
        windows.delete(closed)
        session.put_many(TASK_STORE, [b"t-0"], [b"%d" % epoch])
        partition = {"task": "0_0", "segment": str(epoch // SEGMENT_EPOCHS)}
        files = [
            write_file(
                app, changelog_spec(spec), changelog_frame(spec, session).with_columns(_epoch=pl.lit(epoch)), partition
            )
            for spec in SPECS
        ]
        assert (
            store.apply(
                session,
                state=StateId(1, epoch),
                expected=expected,
                generation=1,
                plan_hash=str(epoch),
                make_receipt=repr_bytes,
            )
            is not None
        )
    return files


def repr_bytes(value: object) -> bytes:
    return repr(value).encode()


def content(store: TaskStore) -> dict[str, list]:
    with store.reader(IsolationLevel.READ_COMMITTED) as reader:
        return {name: list(reader.scan(name)) for name in ("totals", "windows", TASK_STORE, LONG_KEYS)}
