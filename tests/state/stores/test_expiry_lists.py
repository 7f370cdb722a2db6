"""The index of expiries with lists: what it gives, with entries of many rows and of one, is what was put."""

from __future__ import annotations

import random

import numpy as np
import polars as pl
import pytest

from weir.state.engine.memory import MemoryStore
from weir.state.engine.task_store import EXPIRIES, TaskStore
from weir.state.stores.access import StoreTime
from weir.state.stores.expiry import LIST_ROWS, SPAN_MS, ExpiryIndex
from weir.state.stores.session import SessionStore
from weir.state.stores.specs import session_spec
from weir.state.types import StateId

SPEC = session_spec("windows", pl.Schema({"user": pl.String()}), pl.Schema({"n": pl.Int64()}), retention_ms=5_000)


def put(index: ExpiryIndex, sessions: dict[bytes, int], *, as_lists: bool) -> None:
    if as_lists:
        index.put_lists(list(sessions), np.array(list(sessions.values()), np.int64))
    else:
        index.put(sessions.items())


@pytest.mark.parametrize("seed", range(20))
def test_sessions_are_found_and_taken_by_their_ends_in_lists_or_one_by_one(seed):
    rng, model = random.Random(seed), dict[bytes, int]()
    with MemoryStore("0_0", ["windows"]).session() as session:
        index = ExpiryIndex(SPEC, session)
        for step in range(6):
            ends = [rng.randrange(-2 * SPAN_MS, 4 * SPAN_MS) for _ in range(rng.choice([0, 1, 50, 200]))]
            added = {b"%d-%d" % (step, place): end for place, end in enumerate(ends)}
            added |= {key: model[key] for key in rng.sample(sorted(model), min(3, len(model)))}  # put once more
            put(index, added, as_lists=rng.random() < 0.7)
            model |= added
            first, last = sorted(rng.randrange(-3 * SPAN_MS, 5 * SPAN_MS) for _ in range(2))
            for lower in (None, first):
                found = index.between(lower, last)
                assert [end for _, end in found] == sorted(end for _, end in found)
                assert sorted(found) == sorted((k, e) for k, e in model.items() if (lower or -1 << 60) <= e <= last)
                listed = list(dict.fromkeys(index.in_order(lower)))
                assert [end for _, end in listed] == sorted(end for _, end in listed)
                assert sorted(listed) == sorted((k, e) for k, e in model.items() if (lower or -1 << 60) <= e)
            assert index.oldest_ms() == min(model.values(), default=None)
            alone, listed = index.take(first)
            assert listed == sorted(listed)
            assert {*alone, *listed} == {key for key, end in model.items() if end <= first}
            model = {key: end for key, end in model.items() if end > first}


def test_many_sessions_that_end_together_share_an_entry_and_those_of_another_second_do_not():
    with MemoryStore("0_0", ["windows"]).session() as session:
        put(ExpiryIndex(SPEC, session), {b"%d" % end: end for end in range(2 * LIST_ROWS)}, as_lists=True)
        put(ExpiryIndex(SPEC, session), {b"later": 2 * SPAN_MS, b"last": 5 * SPAN_MS}, as_lists=True)
        assert session.count(EXPIRIES) == 4


def test_windows_that_share_entries_expire_each_in_its_time_and_again_after_a_rollback(tmp_path):
    task, time = TaskStore.create(tmp_path / "0_0", "0_0", ["windows"]), StoreTime()
    ends = [*range(0, 3_000, 7), 2_999]
    rows = pl.DataFrame(
        {"user": [f"u{place}" for place in range(len(ends))], "window_start": ends, "window_end": ends, "n": ends}
    ).with_columns(pl.col("n").alias("_ts"))
    rows = rows.cast({name: kind for name, kind in SPEC.key.items()})
    states = [StateId(1, epoch) for epoch in range(1, 4)]

    def apply(session, state, expected) -> None:
        task.apply(session, state=state, expected=expected, generation=1, plan_hash="", make_receipt=lambda _: b"")

    with task.session() as session:
        SessionStore(SPEC, session, time).write_rows(rows, are_lasting=True)
        apply(session, states[0], None)
    task.settle(generation=1, expected=states[0], committed=states[0])
    for _ in range(2):
        for state, expected, oldest in ((states[1], states[0], 1_234), (states[2], states[1], 2_999)):
            time.clocks["windows"] = oldest + 5_000 - 1
            with task.session() as session:
                SessionStore(SPEC, session, time).forget_expired()
                apply(session, state, expected)
            with task.session() as session:
                assert sorted(SessionStore(SPEC, session).columns.scan()[1]["n"]) == [e for e in ends if e >= oldest]
        task.settle(generation=1, expected=states[0], committed=states[0])
        with task.session() as session:
            assert session.count("windows") == len(ends)
    task.close()


def test_a_window_that_was_removed_and_put_again_is_found_and_expires_once(tmp_path):
    task = TaskStore.create(tmp_path / "0_0", "0_0", ["windows"])
    row = pl.DataFrame({"user": ["a"], "window_start": [1], "window_end": [9], "n": [1], "_ts": [9]})
    row = row.cast({name: kind for name, kind in SPEC.key.items()})
    with task.session() as session:
        store = SessionStore(SPEC, session, StoreTime(clocks={"windows": 9_000}))
        for _ in range(2):
            store.write_rows(row, are_lasting=True)
            store.delete_rows(row)
        store.write_rows(row.with_columns(n=pl.lit(2, pl.Int64)), are_lasting=True)
        assert SessionStore(SPEC, session).find_ended(None, 9).frame()["n"].to_list() == [2]
        assert store.expire()["n"].to_list() == [2]
        assert session.count("windows") == 0
    task.close()
