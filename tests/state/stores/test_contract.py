"""What every kind of store promises, in memory and on disk: bounds, order, expiry, and its rows in changelogs."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import product

import polars as pl
import pytest

from weir.state.changelog.rows import changelog_frame
from weir.state.engine.contract import Settlement
from weir.state.engine.memory import MemoryStore
from weir.state.engine.task_store import EXPIRIES, TaskStore
from weir.state.errors import FencedStoreError, TransactionClosedError, UnknownStoreError
from weir.state.stores.access import StoreTime, ValueAndTimestamp
from weir.state.stores.key_value import KeyValueStore, TimestampedKeyValueStore
from weir.state.stores.kinds import store_of
from weir.state.stores.session import SessionStore
from weir.state.stores.specs import key_value_spec, session_spec, versioned_spec, window_spec
from weir.state.stores.versioned import NOT_PUT, VALID_TO_UNDEFINED, VersionedRow, VersionedStore
from weir.state.stores.window import TimestampedWindowStore, WindowKey, WindowStore
from weir.state.types import IsolationLevel, StateId, StoreClock

USER, N = pl.Schema({"user": pl.String()}), pl.Schema({"n": pl.Int64()})
ROUTE = pl.Schema({"carrier": pl.String(), "flight": pl.Int64()})
KEY_VALUE = key_value_spec("kv", USER, N)
ROUTES = key_value_spec("routes", ROUTE, pl.Schema({"n": pl.Int64(), "note": pl.String()}))
LIVED = key_value_spec("lived", USER, N, ttl_ms=10)
CLOCKED = key_value_spec("clocked", USER, N, ttl_ms=10, expires_by=StoreClock.WALL_CLOCK)
WINDOWS = window_spec("windows", USER, N, size_ms=5, retention_ms=20)
SESSIONS = session_spec("sessions", USER, N, retention_ms=20)
VERSIONS = versioned_spec("versions", USER, N, history_ms=20)
ALL = (KEY_VALUE, ROUTES, LIVED, CLOCKED, WINDOWS, SESSIONS, VERSIONS)


@pytest.fixture(params=["memory", "lmdb"])
def task(request, tmp_path):
    names = [spec.name for spec in ALL]
    store = MemoryStore("0_0", names) if request.param == "memory" else TaskStore.create(tmp_path / "i", "0_0", names)
    yield store
    store.close()


@contextmanager
def epoch(task, number: int, commit: bool = True):
    """A session whose writes are applied when it ends."""
    before = task.current
    with task.session() as session:
        yield session
        state = StateId(1, number)
        assert (
            task.apply(
                session,
                state=state,
                expected=before,
                generation=1,
                plan_hash=f"p{number}",
                make_receipt=lambda uncommitted: b"r%d" % uncommitted.records,
            )
            is not None
        )
    if commit:
        task.settle(generation=1, expected=state, committed=state)


# the transactions


def test_an_epoch_is_visible_once_applied_and_committed_once_settled(task):
    with epoch(task, 1) as session:
        KeyValueStore(KEY_VALUE, session).put("a", 1)
    with task.reader(IsolationLevel.READ_COMMITTED) as before, epoch(task, 2, commit=False) as session:
        store = KeyValueStore(KEY_VALUE, session)
        store.put("a", 2)
        store.put("b", 3)
        assert KeyValueStore(KEY_VALUE, before).get("a") == 1
    assert task.stored_receipt("p2") == b"r2"
    assert (task.uncommitted.records, task.base, task.current) == (2, StateId(1, 1), StateId(1, 2))
    for isolation, wanted in (
        (IsolationLevel.READ_COMMITTED, [("a", 1)]),
        (IsolationLevel.READ_UNCOMMITTED, [("a", 2), ("b", 3)]),
    ):
        with task.reader(isolation) as reader:
            assert list(KeyValueStore(KEY_VALUE, reader).all()) == wanted
            assert KeyValueStore(KEY_VALUE, reader).approximate_num_entries() == len(wanted)
    assert task.settle(generation=2, expected=StateId(1, 1), committed=StateId(1, 1)) is Settlement.ROLLED_BACK
    assert task.stored_receipt("p2") is None
    with task.session() as session:
        assert list(KeyValueStore(KEY_VALUE, session).all()) == [("a", 1)]
    with pytest.raises(FencedStoreError):
        task.settle(generation=1, expected=StateId(1, 1), committed=StateId(1, 1))
    assert task.settle(generation=2, expected=StateId(9, 9), committed=None) is Settlement.NEEDS_RESTORE


def test_a_snapshot_stays_as_it_was_while_epochs_are_applied(task):
    with epoch(task, 1) as session:
        KeyValueStore(KEY_VALUE, session).put("a", 1)
    with task.reader(IsolationLevel.READ_UNCOMMITTED) as reader:
        with epoch(task, 2) as session:
            KeyValueStore(KEY_VALUE, session).put("a", 2)
        assert KeyValueStore(KEY_VALUE, reader).get("a") == 1


def test_an_epoch_that_began_on_another_state_has_no_effect(task):
    with epoch(task, 1):
        pass
    with task.session() as late:
        KeyValueStore(KEY_VALUE, late).put("a", 1)
        with epoch(task, 2):
            pass
        assert (
            task.apply(
                late,
                state=StateId(1, 3),
                expected=StateId(1, 2),
                generation=1,
                plan_hash="x",
                make_receipt=lambda _: b"",
            )
            is None
        )
    with pytest.raises(TransactionClosedError):
        KeyValueStore(KEY_VALUE, late).get("b")
    with task.session() as session, pytest.raises(UnknownStoreError):
        session.get_many("nothing", [b"a"])


def test_a_scan_is_not_disturbed_by_deletes_while_it_runs(task):
    with epoch(task, 1) as session:
        KeyValueStore(KEY_VALUE, session).put_all([("a", 1), ("c", 3)])
    with task.session() as session:
        store = KeyValueStore(KEY_VALUE, session)
        store.put("b", 2)
        seen = []
        for key, _ in store.all():
            seen.append(key)
            store.delete(key)
            store.put(f"{key}-later", 1)
        assert seen == ["a", "b", "c"]
        assert [key for key, _ in store.all()] == ["a-later", "b-later", "c-later"]


# key-value


def test_ranges_include_both_ends_and_none_means_no_bound(task):
    with task.session() as session:
        store = KeyValueStore(KEY_VALUE, session)
        store.put_all((key, place) for place, key in enumerate("dbac"))
        assert [key for key, _ in store.range("b", "c")] == ["b", "c"]
        assert [key for key, _ in store.range(None, "b")] == ["a", "b"]
        assert [key for key, _ in store.range("c", None)] == ["c", "d"]
        assert [key for key, _ in store.range("c", "b")] == []
        assert [key for key, _ in store.reverse_range("b", "d")] == ["d", "c", "b"]
        assert store.range("a", "b").frame().rows() == [("a", 2, None), ("b", 1, None)]


def test_putting_null_deletes_and_a_null_key_is_refused(task):
    with task.session() as session:
        store = KeyValueStore(KEY_VALUE, session)
        assert store.put_if_absent("a", 1) is None
        assert store.put_if_absent("a", 2) == 1
        store.put("a", None)
        assert store.get("a") is None
        assert store.delete("a") is None
        for call in (store.get, store.delete, lambda key: store.put(key, 1), lambda key: store.put(key, None)):
            with pytest.raises(ValueError, match="null key"):
                call(None)


def test_keys_of_several_columns_are_tuples_or_dictionaries_and_read_back_as_dictionaries(task):
    with task.session() as session:
        store = KeyValueStore(ROUTES, session)
        store.put(("UA", 7), {"n": 1, "note": "x"})
        store.put({"carrier": "UA", "flight": -1}, {"n": 2, "note": None})
        store.put(("U", 3), {"n": 3, "note": ""})
        assert store.get({"flight": 7, "carrier": "UA"}) == {"n": 1, "note": "x"}
        assert [(key["carrier"], key["flight"]) for key, _ in store.all()] == [("U", 3), ("UA", -1), ("UA", 7)]
        assert [row["n"] for _, row in store.prefix_scan("U")] == [3, 2, 1]
        assert [row["n"] for _, row in store.prefix_scan(("UA", -1))] == [2]
        with pytest.raises(TypeError, match="carrier, flight"):
            store.get("UA")
        with pytest.raises(TypeError, match="n, note"):
            store.put(("UA", 7), {"n": 1})


def test_a_timestamped_store_shows_the_timestamp_of_a_row(task):
    with task.session() as session:
        store = TimestampedKeyValueStore(KEY_VALUE, session)
        store.put("a", 1, 50)
        store.put("b", 2)
        assert store.get("a") == ValueAndTimestamp(1, 50)
        assert list(store.all()) == [("a", (1, 50)), ("b", (2, None))]


def test_rows_expire_some_stream_time_after_their_last_write(task):
    with task.session() as session:
        time = StoreTime()
        store = KeyValueStore(LIVED, session, time)
        store.put("a", 1, 100)
        store.put("b", 1, 105)
        store.put("a", 2, 108)
        store.put("late", 1, 99)
        store.put("too late", 1, 98)
        assert (store.get("late"), store.get("too late"), store.expired_puts) == (1, None, 1)
        store.put("c", 1, 115)
        assert [key for key, _ in store.all()] == ["a", "c"]
        assert store.get("b") is None
        assert time.clocks == {"lived": 115}
        assert store.expire()["user"].to_list() == ["late", "b"]
        with pytest.raises(ValueError, match="timestamp"):
            store.put("d", 1)


def test_rows_expire_some_wall_clock_time_after_their_last_write(task):
    with task.session() as session:
        time = StoreTime(now_ms=1_000)
        store = KeyValueStore(CLOCKED, session, time)
        store.put("a", 1)
        store.put_rows(pl.DataFrame({"user": ["b"], "n": [2], "_ts": [5]}))
        time.now_ms = 1_009
        store.put("b", 3)
        assert list(store.all()) == [("a", 1), ("b", 3)]
        time.now_ms = 1_010
        assert list(store.all()) == [("b", 3)]
        assert store.expire().rows() == [("a", 1, None)]
        assert store.approximate_num_entries() == 1


@pytest.mark.parametrize("flags", list(product([True, False, None], repeat=3)))
def test_rows_are_put_or_deleted_by_their_own_flag_and_left_out_if_it_is_null(task, flags):
    users = ["a", "b", "c"]
    with epoch(task, 1) as session:
        store = KeyValueStore(KEY_VALUE, session)
        store.put_rows(pl.DataFrame({"user": users, "n": [1] * 3, "_ts": [0] * 3}))
        deleted = pl.Series("_deleted", flags, dtype=pl.Boolean)
        store.put_rows(pl.DataFrame({"user": users, "n": [2] * 3, "_ts": [1] * 3}).with_columns(deleted))
        expected = [(user, {None: 1, False: 2}[flag]) for user, flag in zip(users, flags, strict=True) if not flag]
        assert list(store.all()) == expected


@pytest.mark.parametrize("spec", [LIVED, SESSIONS, VERSIONS, WINDOWS], ids=lambda spec: spec.name)
def test_expired_rows_become_tombstones_in_the_changelog_of_the_epoch_that_expires_them(task, spec):
    time = StoreTime()
    rows = pl.DataFrame(
        {
            "user": ["a", "a", "b"],
            "window_start": [0, 50, 60],
            "window_end": [5, 55, 65],
            "n": [1, 2, 3],
            "_ts": [0, 50, 75],
            "_deleted": [False] * 3,
        }
    )
    rows = rows.cast({name: dtype for name, dtype in spec.key.items() if name in rows.columns})
    with epoch(task, 1) as session:
        store_of(spec, session, time).put_rows(rows[:1])
    with epoch(task, 2) as session:
        store = store_of(spec, session, time)
        store.put_rows(rows[1:] if spec is not LIVED else rows[2:])
        assert store.expire().height == 1
        changes = changelog_frame(spec, session)
        assert changes.filter("_deleted")["user"].to_list() == ["a"]
        assert changes.filter(~pl.col("_deleted"))["n"].to_list() in ([2, 3], [3])
    with task.session() as session:
        assert store_of(spec, session, time).expire().is_empty()
        indexed = {"lived": 1, "sessions": 2}.get(spec.name, 0)
        assert len(list(session.scan(EXPIRIES))) == indexed


# windows


def put_windows(session) -> WindowStore:
    store = WindowStore(WINDOWS, session)
    for key, start_ms, n in (("b", 10, 1), ("a", 10, 2), ("a", 15, 3), ("ab", 15, 4), ("a", 25, 5)):
        store.put(key, n, start_ms)
    return store


def test_windows_of_a_key_are_found_between_starts_both_inclusive(task):
    with task.session() as session:
        store = put_windows(session)
        assert store.fetch("a", 15) == 3
        assert store.fetch("a", 16) is None
        assert list(store.fetch_between("a", 10, 15)) == [(WindowKey("a", 10, 15), 2), (WindowKey("a", 15, 20), 3)]
        assert [row for _, row in store.backward_fetch_between("a", 10, 25)] == [5, 3, 2]
        assert [row for _, row in store.fetch_between("a", 11, 14)] == []
        assert [row for _, row in store.fetch_keys("ab", None, 0, 15)] == [1, 4]
        assert [row for _, row in store.fetch_keys("a", "ab", 10, 15)] == [2, 3, 4]
        assert [row for _, row in store.backward_fetch_keys(None, "a", 10, 25)] == [5, 3, 2]
        assert [row for _, row in store.fetch_all(10, 15)] == [2, 1, 3, 4]
        assert [row for _, row in store.backward_fetch_all(15)] == [5, 4, 3]
        assert [row for _, row in store.all()] == [row for _, row in store.backward_all()][::-1] == [2, 1, 3, 4, 5]
        store.put("a", None, 15)
        assert store.fetch("a", 15) is None


def test_windows_older_than_the_retention_are_neither_found_nor_accepted(task):
    with task.session() as session:
        store = put_windows(session)
        store.put("c", 6, 30)  # 30 - 20: the windows that started at 10 have expired, those at 11 have not
        assert store.fetch("a", 10) is None
        assert [row for _, row in store.fetch_all(0, 100)] == [3, 4, 5, 6]
        store.put("c", 7, 10)
        store.put("c", 8, 11)
        assert (store.expired_puts, store.fetch("c", 10), store.fetch("c", 11)) == (1, None, 8)
        assert store.expire()["n"].to_list() == [2, 1]


def test_a_timestamped_window_store_shows_the_timestamp_of_a_row(task):
    with task.session() as session:
        store = TimestampedWindowStore(WINDOWS, session)
        store.put("a", 1, 10, 12)
        assert store.fetch("a", 10) == (1, 12)
        assert list(store.fetch_all()) == [((WindowKey("a", 10, 15)), (1, 12))]


def test_reading_a_key_does_not_read_the_windows_of_others(task):
    with epoch(task, 1) as session:
        rows = pl.DataFrame(
            {
                "user": [f"u{n}" for n in range(500)] * 4,
                "n": 0,
                "_ts": 0,
                "window_start": [5 * (n // 500) for n in range(2000)],
            }
        )
        times = rows.select(
            pl.col("window_start").cast(WINDOWS.key["window_start"]),
            (pl.col("window_start") + 5).cast(WINDOWS.key["window_end"]).alias("window_end"),
        )
        WindowStore(WINDOWS, session).put_rows(rows.drop("window_start").hstack(times))
    with task.session() as session:
        read = 0

        class Counting:
            def __getattr__(self, name):
                return getattr(session, name)

            def scan(self, *arguments, **options):
                nonlocal read
                for row in session.scan(*arguments, **options):
                    read += 1
                    yield row

        assert len(list(WindowStore(WINDOWS, Counting()).fetch_between("u7"))) == 4
        assert read == 4


# sessions


def test_sessions_are_found_by_their_end_and_start_both_inclusive(task):
    with task.session() as session:
        store = SessionStore(SESSIONS, session)
        for key, start_ms, end_ms, n in (("a", 10, 12, 1), ("a", 5, 20, 2), ("a", 22, 22, 3), ("b", 11, 12, 4)):
            store.put(key, n, start_ms, end_ms)
        assert [row for _, row in store.find_sessions("a", 12, 10)] == [1, 2]
        assert [row for _, row in store.find_sessions("a", 13, 10)] == [2]
        assert [row for _, row in store.find_sessions("a", 12, 9)] == [2]
        assert [row for _, row in store.backward_find_sessions("a", 12, 22)] == [3, 2, 1]
        assert [row for _, row in store.find_sessions_of_keys("a", "b", 12, 11)] == [1, 2, 4]
        assert [row for _, row in store.backward_find_sessions_of_keys(None, None, 12, 11)] == [4, 2, 1]
        assert list(store.fetch("b")) == [(WindowKey("b", 11, 12), 4)]
        assert [row for _, row in store.backward_fetch("a")] == [3, 2, 1]
        assert [row for _, row in store.fetch_keys("b", None)] == [4]
        assert [row for _, row in store.backward_fetch_keys(None, None)] == [4, 3, 2, 1]
        assert sorted(row for _, row in store.find_ended(12, 20)) == [1, 2, 4]
        assert store.fetch_session("a", 5, 20) == 2
        store.remove("a", 5, 20)
        assert store.fetch_session("a", 5, 20) is None
        store.put("a", None, 10, 12)
        assert [row for _, row in store.fetch("a")] == [3]


def test_a_session_has_expired_once_its_end_is_the_retention_before_stream_time(task):
    with task.session() as session:
        store = SessionStore(SESSIONS, session)
        store.put("a", 1, 0, 10)
        store.put("b", 2, 0, 11)
        store.put("c", 3, 30, 30)
        assert [row for _, row in store.fetch_keys(None, None)] == [2, 3]
        assert store.fetch_session("a", 0, 10) is None
        store.put("d", 4, 0, 10)
        assert store.expired_puts == 1
        assert store.expire()["n"].to_list() == [1]
        with pytest.raises(ValueError, match="cannot end"):
            store.put("a", 1, 5, 4)


# versions


def test_versions_are_valid_until_the_next_and_are_found_as_of_any_time_of_the_history(task):
    with task.session() as session:
        store = VersionedStore(VERSIONS, session)
        assert store.put("a", 1, 10) == VALID_TO_UNDEFINED
        assert store.put("a", 3, 30) == VALID_TO_UNDEFINED
        assert store.put("a", 2, 20) == 30
        assert store.get("a") == VersionedRow(3, 30, None)
        assert store.get("a", 29) == VersionedRow(2, 20, 30)
        assert store.get("a", 19) == VersionedRow(1, 10, 20)
        assert store.get("a", 9) is None
        assert [row.value for row in store.versions("a", 19, 20)] == [2, 1]
        assert [row.value for row in store.versions("a", oldest_first=True)] == [1, 2, 3]
        assert store.put("a", 4, 20) == 30
        assert store.get("a", 20) == VersionedRow(4, 20, 30)
        assert store.delete("a", 25) == VersionedRow(4, 20, 30)
        assert store.get("a", 26) is None
        assert store.get("a", 24) == VersionedRow(4, 20, 25)
        assert store.delete("a", 40) == VersionedRow(3, 30, None)
        assert store.get("a") is None


def test_the_newest_version_is_found_at_any_age_and_others_only_within_the_history(task):
    with task.session() as session:
        store = VersionedStore(VERSIONS, session)
        store.put("a", 1, 10)
        store.put("b", 1, 10)
        store.put("b", 2, 40)
        store.put("c", 1, 60)
        assert store.get("a", 15) == store.get("a") == VersionedRow(1, 10, None)
        assert store.get("b", 39) is None
        assert store.get("b", 40) == VersionedRow(2, 40, None)
        assert store.put("a", 9, 39) == NOT_PUT
        assert store.delete("a", 39) is None
        assert store.expired_puts == 2
        assert store.put("a", 9, 40) == VALID_TO_UNDEFINED
        assert store.expire()["n"].to_list() == [1, 1]


def test_impossible_specs_are_refused():
    with pytest.raises(ValueError, match=r"'w'.* 9 ms.* 10 ms.*at least that long"):
        window_spec("w", USER, N, size_ms=10, retention_ms=9)
    with pytest.raises(ValueError, match="at least one millisecond"):
        key_value_spec("k", USER, N, ttl_ms=0)
