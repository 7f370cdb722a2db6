"""Every kind of store against plain dictionaries, in memory and on disk, through commits, rollbacks and crashes."""

from __future__ import annotations

import copy
import tempfile
from contextlib import ExitStack
from pathlib import Path

import polars as pl
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.examples import examples
from tests.state.stores.models import (
    KeyValueModel,
    ListModel,
    Model,
    SessionModel,
    TimerModel,
    VersionedModel,
    WindowModel,
)
from weir.state.engine.contract import Settlement
from weir.state.engine.memory import MemoryStore
from weir.state.engine.task_store import EXPIRIES, TaskStore
from weir.state.stores.access import StoreTime
from weir.state.stores.expiry import expiry_times, index_rows
from weir.state.stores.key_value import TimestampedKeyValueStore
from weir.state.stores.lists import ListStore
from weir.state.stores.session import SessionStore
from weir.state.stores.specs import GONE, SINCE, key_value_spec, list_spec, session_spec, versioned_spec, window_spec
from weir.state.stores.timers import TimerStore, timer_spec
from weir.state.stores.versioned import NOT_PUT, VersionedStore
from weir.state.stores.window import WindowStore
from weir.state.types import IsolationLevel, StateId

KEY, VALUE = pl.Schema({"user": pl.String()}), pl.Schema({"n": pl.Int64()})
KEYS = st.sampled_from(["", "a", "a\x00", "a\x00b", "b", "é", "z" * 600])
ROWS = st.integers(0, 9)
TIMES = st.integers(0, 60)
BOUNDS = st.none() | TIMES
LEVELS = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)


class StoreMachine(RuleBasedStateMachine):
    """Epochs of one store. The model is copied when the store makes a snapshot."""

    store_class: type
    in_memory: bool

    def __init__(self) -> None:
        super().__init__()
        self.resources = ExitStack()
        self.epoch = 0
        self.state: StateId | None = None
        self.committed_state: StateId | None = None

    @initialize()
    def begin(self) -> None:
        self.model, self.spec = self.new_model(), self.new_spec()
        self.applied, self.committed = copy.deepcopy(self.model), copy.deepcopy(self.model)
        if self.in_memory:
            self.task = MemoryStore("0_0", [self.spec.name])
        else:
            folder = Path(self.resources.enter_context(tempfile.TemporaryDirectory(prefix="weir-model-")))
            self.folder = folder / "i"
            self.task = TaskStore.create(self.folder, "0_0", [self.spec.name])
        self.open_session()

    def open_session(self) -> None:
        """The model returns to what was applied: what the session wrote is gone."""
        self.model = copy.deepcopy(self.applied)
        self.session_scope = ExitStack()
        self.session = self.session_scope.enter_context(self.task.session())
        clocks = {} if self.model.clock_ms is None else {self.spec.name: self.model.clock_ms}
        self.store = self.store_class(self.spec, self.session, StoreTime(clocks=clocks))
        self.expired_before = self.model.expired_puts

    @rule()
    def apply(self) -> None:
        self.epoch += 1
        state = StateId(1, self.epoch)
        assert (
            self.task.apply(
                self.session,
                state=state,
                expected=self.state,
                generation=1,
                plan_hash=str(state),
                make_receipt=lambda _: b"done",
            )
            == b"done"
        )
        self.session_scope.close()
        self.state, self.applied = state, self.model
        self.open_session()

    @rule()
    def commit(self) -> None:
        self.session_scope.close()
        assert self.task.settle(generation=1, expected=self.state, committed=self.state) is Settlement.READY
        self.committed_state, self.committed = self.state, copy.deepcopy(self.applied)
        self.open_session()

    @rule()
    def roll_back(self) -> None:
        self.session_scope.close()
        self.settle_back()
        self.open_session()

    def settle_back(self) -> None:
        is_ahead = self.state != self.committed_state
        assert self.task.settle(generation=1, expected=self.committed_state, committed=self.committed_state) is (
            Settlement.ROLLED_BACK if is_ahead else Settlement.READY
        )
        self.state, self.applied = self.committed_state, copy.deepcopy(self.committed)

    @precondition(lambda self: not self.in_memory)
    @rule(is_crash=st.booleans())
    def reopen(self, is_crash: bool) -> None:
        """A crash loses the running epoch, and what is not committed is rolled back."""
        self.session_scope.close()
        self.task.close(clean=not is_crash)
        self.task = TaskStore.open(self.folder, "0_0", [self.spec.name])
        if is_crash:
            self.settle_back()
        self.open_session()

    @rule()
    def expire(self) -> None:
        self.store.expire()
        self.model.expire()

    @invariant()
    def the_store_answers_as_the_model(self) -> None:
        if hasattr(self, "store"):
            self.compare(self.store, self.model)
            assert self.store.expired_puts == self.model.expired_puts - self.expired_before

    @invariant()
    def expiries_are_those_of_the_rows(self) -> None:
        if hasattr(self, "store") and (self.spec.retention_ms is not None or SINCE in self.spec.value):
            keys, rows = self.store.columns.scan()
            frame = pl.concat([self.store.columns.decode(keys), rows], how="horizontal")
            assert dict(self.session.scan(EXPIRIES)) == index_rows(self.spec, keys, expiry_times(self.spec, frame))

    @rule(isolation=st.sampled_from(LEVELS))
    def read(self, isolation: IsolationLevel) -> None:
        model = self.committed if isolation is IsolationLevel.READ_COMMITTED else self.applied
        clocks = {} if model.clock_ms is None else {self.spec.name: model.clock_ms}
        with self.task.reader(isolation) as reader:
            self.compare(self.store_class(self.spec, reader, StoreTime(clocks=clocks)), model)

    def teardown(self) -> None:
        if hasattr(self, "session_scope"):
            self.session_scope.close()
            self.task.close()
        self.resources.close()


class KeyValueMachine(StoreMachine):
    store_class = TimestampedKeyValueStore

    def new_spec(self):
        return key_value_spec("s", KEY, VALUE, ttl_ms=20)

    def new_model(self) -> Model:
        return KeyValueModel(20)

    @rule(key=KEYS, row=ROWS, time_ms=TIMES)
    def put(self, key, row, time_ms):
        self.store.put(key, row, time_ms)
        self.model.put(key, row, time_ms)

    @rule(rows=st.lists(st.tuples(KEYS, ROWS, TIMES), max_size=4))
    def put_batch(self, rows):
        self.store.put_rows(
            pl.DataFrame(rows, schema={"user": pl.String, "n": pl.Int64, "_ts": pl.Int64}, orient="row")
        )
        for row in rows:
            self.model.put(*row)

    @rule(key=KEYS)
    def delete(self, key):
        assert self.store.delete(key) == self.model.delete(key)

    @rule(keys=st.lists(KEYS, max_size=3))
    def delete_batch(self, keys):
        self.store.delete_rows(pl.DataFrame({"user": keys}, schema=KEY))
        for key in keys:
            self.model.delete(key)

    @rule(lower=st.none() | KEYS, upper=st.none() | KEYS)
    def ranges(self, lower, upper):
        wanted = self.model.range(lower, upper)
        assert list(self.store.range(lower, upper)) == wanted
        assert list(self.store.reverse_range(lower, upper)) == wanted[::-1]

    @rule(prefix=KEYS)
    def prefixes(self, prefix):
        assert list(self.store.prefix_scan(prefix)) == [
            (key, row) for key, row in self.model.range(None, None) if key.startswith(prefix)
        ]

    def compare(self, store, model):
        assert list(store.all()) == model.range(None, None)
        asked = pl.DataFrame({"user": ["a", "z" * 600, "b"]})
        for key, found in zip(asked["user"], store.get_rows(asked).to_dicts(), strict=True):
            wanted = model.get(key)
            assert store.get(key) == wanted
            assert ((found["n"], found["_ts"]) if found["_found"] else None) == wanted


class WindowMachine(StoreMachine):
    store_class = WindowStore

    def new_spec(self):
        return window_spec("s", KEY, VALUE, size_ms=5, retention_ms=20)

    def new_model(self) -> Model:
        return WindowModel(20, 5)

    @rule(key=KEYS, row=st.none() | ROWS, start_ms=TIMES)
    def put(self, key, row, start_ms):
        self.store.put(key, row, start_ms)
        self.model.put(key, row, start_ms)

    @rule(rows=st.lists(st.tuples(KEYS, ROWS, TIMES), max_size=4))
    def put_batch(self, rows):
        frame = pl.DataFrame(
            [(key, start, start + 5, row, start) for key, row, start in rows],
            orient="row",
            schema={
                "user": pl.String,
                "window_start": pl.Int64,
                "window_end": pl.Int64,
                "n": pl.Int64,
                "_ts": pl.Int64,
            },
        )
        self.store.put_rows(frame.cast(dict(self.spec.key)))
        for row in rows:
            self.model.put(*row)

    @rule(key=KEYS, start_ms=TIMES)
    def delete_batch(self, key, start_ms):
        frame = pl.DataFrame({"user": [key], "window_start": [start_ms], "window_end": [start_ms + 5]})
        self.store.delete_rows(frame.cast(dict(self.spec.key)))
        self.model.rows.pop((start_ms, key), None)

    @rule(key=KEYS, lower=st.none() | KEYS, upper=st.none() | KEYS, from_ms=BOUNDS, to_ms=BOUNDS)
    def ranges(self, key, lower, upper, from_ms, to_ms):
        store, model = self.store, self.model
        for found, backward, wanted in (
            (
                store.fetch_between(key, from_ms, to_ms),
                store.backward_fetch_between(key, from_ms, to_ms),
                model.fetch(key, key, from_ms, to_ms),
            ),
            (
                store.fetch_keys(lower, upper, from_ms, to_ms),
                store.backward_fetch_keys(lower, upper, from_ms, to_ms),
                model.fetch(lower, upper, from_ms, to_ms),
            ),
            (
                store.fetch_all(from_ms, to_ms),
                store.backward_fetch_all(from_ms, to_ms),
                model.fetch(None, None, from_ms, to_ms),
            ),
        ):
            assert list(found) == wanted
            assert list(backward) == wanted[::-1]

    def compare(self, store, model):
        rows = model.fetch(None, None, None, None)
        assert list(store.all()) == rows
        wanted = {(window.key, window.start_ms): row for window, row in rows}
        asked = [("a", start_ms) for start_ms in (0, 30, 60)]
        assert [store.fetch(*place) for place in asked] == [wanted.get(place) for place in asked]
        frame = pl.DataFrame(
            [(key, start, start + 5) for key, start in asked],
            orient="row",
            schema={name: pl.Int64 if name != "user" else pl.String for name in self.spec.key},
        )
        found = store.get_rows(frame.cast(dict(self.spec.key)))
        assert found["n"].to_list() == [wanted.get(place) for place in asked]
        assert found["_found"].to_list() == [place in wanted for place in asked]


class SessionMachine(StoreMachine):
    store_class = SessionStore

    def new_spec(self):
        return session_spec("s", KEY, VALUE, retention_ms=20)

    def new_model(self) -> Model:
        return SessionModel(20)

    @rule(key=KEYS, row=st.none() | ROWS, start_ms=TIMES, length_ms=st.integers(0, 8))
    def put(self, key, row, start_ms, length_ms):
        self.store.put(key, row, start_ms, start_ms + length_ms)
        self.model.put(key, row, start_ms, start_ms + length_ms)

    @rule(rows=st.lists(st.tuples(KEYS, ROWS, TIMES, st.integers(0, 8)), max_size=4))
    def put_batch(self, rows):
        frame = pl.DataFrame(
            [(key, start, start + length, row, start) for key, row, start, length in rows],
            schema={
                "user": pl.String,
                "window_start": pl.Int64,
                "window_end": pl.Int64,
                "n": pl.Int64,
                "_ts": pl.Int64,
            },
            orient="row",
        )
        self.store.put_rows(frame.cast(dict(self.spec.key)))
        for key, row, start, length in rows:
            self.model.put(key, row, start, start + length)

    @rule(data=st.data())
    def remove(self, data):
        places = [(key, start, end) for key, end, start in sorted(self.model.rows)] or [("a", 1, 2)]
        key, start_ms, end_ms = data.draw(st.sampled_from(places))
        if data.draw(st.booleans()):
            self.store.remove(key, start_ms, end_ms)
        else:
            frame = pl.DataFrame({"user": [key], "window_start": [start_ms], "window_end": [end_ms]})
            self.store.delete_rows(frame.cast(dict(self.spec.key)))
        self.model.remove(key, start_ms, end_ms)

    @rule(key=KEYS, lower=st.none() | KEYS, upper=st.none() | KEYS, end_ms=BOUNDS, start_ms=BOUNDS)
    def ranges(self, key, lower, upper, end_ms, start_ms):
        store, model = self.store, self.model
        wanted = model.find(key, key, end_ms, start_ms)
        assert list(store.find_sessions(key, end_ms, start_ms)) == wanted
        assert list(store.backward_find_sessions(key, end_ms, start_ms)) == wanted[::-1]
        wanted = model.find(lower, upper, end_ms, start_ms)
        assert in_key_order(store.find_sessions_of_keys(lower, upper, end_ms, start_ms)) == wanted
        assert in_key_order(store.backward_find_sessions_of_keys(lower, upper, end_ms, start_ms)) == wanted

    @rule(earliest_ms=BOUNDS, latest_ms=TIMES)
    def ended(self, earliest_ms, latest_ms):
        found = list(self.store.find_ended(earliest_ms, latest_ms))
        assert in_key_order(found) == [
            (window, row)
            for window, row in self.model.find(None, None, earliest_ms, None)
            if window.end_ms <= latest_ms
        ]
        assert [window.end_ms for window, _ in found] == sorted(window.end_ms for window, _ in found)

    @rule(asked=st.lists(st.tuples(KEYS, TIMES, TIMES), min_size=1, max_size=3))
    def many(self, asked):
        frame = pl.DataFrame(asked, schema=["user", "earliest_end_ms", "latest_start_ms"], orient="row")
        found = self.store.find_rows(frame)
        wanted = [
            (place, window.key, window.start_ms, window.end_ms, row)
            for place, (key, end_ms, start_ms) in enumerate(asked)
            for window, row in self.model.find(key, key, end_ms, start_ms)
        ]
        times = [pl.col(name).dt.timestamp("ms") for name in ("window_start", "window_end")]
        assert found.select("_asked", "user", *times, "n").rows() == wanted

    def compare(self, store, model):
        wanted = model.find(None, None, None, None)
        assert in_key_order(store.fetch_keys(None, None)) == wanted
        for window, row in wanted[:2]:
            assert store.fetch_session(*window) == row
        assert store.fetch_session("a", 0, 70) is None


def in_key_order(found) -> list:
    """Sessions of a shortened key are ordered differently if the bounds are short."""
    return sorted(found, key=lambda item: (item[0].key.encode(), item[0].end_ms, item[0].start_ms))


class VersionedMachine(StoreMachine):
    store_class = VersionedStore

    def new_spec(self):
        return versioned_spec("s", KEY, VALUE, history_ms=20)

    def new_model(self) -> Model:
        return VersionedModel(20)

    @rule(key=KEYS, row=st.none() | ROWS, time_ms=TIMES)
    def put(self, key, row, time_ms):
        wanted = self.model.put(key, row, time_ms)
        assert self.store.put(key, row, time_ms) == wanted

    @rule(rows=st.lists(st.tuples(KEYS, st.none() | ROWS, TIMES), max_size=6))
    def put_batch(self, rows):
        frame = pl.DataFrame(
            [(key, row, time_ms, row is None) for key, row, time_ms in rows],
            orient="row",
            schema={"user": pl.String, "n": pl.Int64, "_ts": pl.Int64, "_deleted": pl.Boolean},
        )
        put = self.store.put_rows(frame)
        kept = [row for row in rows if self.model.put(*row) != NOT_PUT]
        assert put.select("user", "n", "_ts").rows() == kept

    @rule(key=KEYS, time_ms=TIMES)
    def delete(self, key, time_ms):
        model = self.model
        is_too_old = model.clock_ms is not None and time_ms < model.clock_ms - 20
        wanted = None if is_too_old else model.get(key, time_ms) if model.clock_ms is not None else None
        model.put(key, None, time_ms)
        assert self.store.delete(key, time_ms) == wanted

    @rule(key=KEYS, from_ms=TIMES, to_ms=TIMES)
    def histories(self, key, from_ms, to_ms):
        if self.model.clock_ms is not None:
            wanted = self.model.versions(key, from_ms, to_ms)
            assert list(self.store.versions(key, from_ms, to_ms)) == wanted
            assert list(self.store.versions(key, from_ms, to_ms, oldest_first=True)) == wanted[::-1]

    def compare(self, store, model):
        if model.clock_ms is None:
            assert store.get("a") is None
            return
        asked = [(key, time_ms) for key in ("a", "z" * 600) for time_ms in (0, 20, 40, 60, None)]
        wanted = [model.get(*each) for each in asked]
        assert [store.get(*each) for each in asked] == wanted
        found = store.get_rows(pl.DataFrame(asked, schema={"user": pl.String, "as_of_ms": pl.Int64}, orient="row"))
        assert found["n"].to_list() == [row and row.value for row in wanted]
        assert found["_ts"].to_list() == [row and row.valid_from_ms for row in wanted]
        assert found["_found"].to_list() == [row is not None for row in wanted]
        newest = store.versions_at(pl.DataFrame({"user": ["a", "z" * 600]}))
        rows = newest.filter(~pl.col(GONE).fill_null(True)).select("n", "_ts").rows()
        assert rows == [(row.value, row.valid_from_ms) for row in wanted[4::5] if row is not None]


class ListMachine(StoreMachine):
    store_class = ListStore

    def new_spec(self):
        return list_spec("s", KEY, VALUE)

    def new_model(self) -> Model:
        return ListModel(None)

    def expire(self):
        """Lists do not expire."""

    @rule(key=KEYS, row=ROWS)
    def append(self, key, row):
        self.store.append(key, row, row)
        self.model.rows.setdefault(key, []).append(row)

    @rule(key=KEYS, rows=st.lists(ROWS, max_size=12))
    def extend(self, key, rows):
        self.store.extend(key, rows)
        self.model.rows.setdefault(key, []).extend(rows)

    @rule(rows=st.lists(st.tuples(KEYS, ROWS, TIMES), max_size=5))
    def append_batch(self, rows):
        self.store.append_rows(
            pl.DataFrame(rows, schema={"user": pl.String, "n": pl.Int64, "_ts": pl.Int64}, orient="row")
        )
        for key, row, _ in rows:
            self.model.rows.setdefault(key, []).append(row)

    @rule(key=KEYS)
    def drain(self, key):
        assert self.store.drain(key) == self.model.rows.pop(key, [])

    @rule(keys=st.lists(KEYS, max_size=2))
    def delete_batch(self, keys):
        self.store.delete_rows(pl.DataFrame({"user": keys}, schema=KEY))
        for key in keys:
            self.model.rows.pop(key, None)

    @rule(keys=st.lists(KEYS, max_size=3))
    def many(self, keys):
        found = self.store.get_rows(pl.DataFrame({"user": keys}, schema=KEY))
        assert found.select("user", "n").rows() == [(key, row) for key in keys for row in self.model.rows.get(key, [])]

    def compare(self, store, model):
        assert list(store.all()) == model.all()
        for key in ("", "a", "a\x00", "z" * 600):
            wanted = model.rows.get(key, [])
            assert (store.get(key), store.count(key)) == (wanted, len(wanted))


class TimerMachine(StoreMachine):
    store_class = staticmethod(lambda spec, view, time: TimerStore(spec, view))

    def new_spec(self):
        return timer_spec("s", KEY)

    def new_model(self) -> Model:
        return TimerModel(None)

    def expire(self):
        """Timers do not expire."""

    @rule(key=KEYS, at_ms=TIMES)
    def set(self, key, at_ms):
        self.store.set(key, at_ms)
        self.model.rows[key] = at_ms

    @rule(timers=st.lists(st.tuples(KEYS, TIMES), max_size=4))
    def set_batch(self, timers):
        self.store.set_rows(
            pl.DataFrame({"user": [key for key, _ in timers]}, schema=KEY),
            pl.Series([at_ms for _, at_ms in timers], dtype=pl.Int64),
        )
        self.model.rows |= dict(timers)

    @rule(key=KEYS)
    def cancel(self, key):
        self.store.cancel(key)
        self.model.rows.pop(key, None)

    @rule(keys=st.lists(KEYS, max_size=3))
    def cancel_batch(self, keys):
        self.store.cancel_rows(pl.DataFrame({"user": keys}, schema=KEY))
        for key in keys:
            self.model.rows.pop(key, None)

    @rule(through_ms=TIMES, as_rows=st.booleans())
    def take(self, through_ms, as_rows):
        wanted = self.model.take(through_ms)
        if as_rows:
            assert self.store.take_rows(through_ms).select("user", "_ts").rows() == wanted
        else:
            assert self.store.take(through_ms) == wanted

    @rule(time_ms=TIMES)
    def due(self, time_ms):
        assert self.store.is_due(time_ms) == any(at_ms <= time_ms for at_ms in self.model.rows.values())

    @rule()
    def next(self):
        assert self.store.next_ms() == min(self.model.rows.values(), default=None)

    def compare(self, store, model):
        keys, rows = store.columns.scan()
        found = store.columns.decode(keys).with_columns(rows["_ts"])
        assert dict(found.select("user", "_ts").rows()) == model.rows


@pytest.mark.hypothesis
@pytest.mark.slow
@pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "lmdb"])
@pytest.mark.parametrize(
    "machine", [KeyValueMachine, WindowMachine, SessionMachine, VersionedMachine, ListMachine, TimerMachine]
)
def test_a_store_answers_like_a_dictionary_through_commits_rollbacks_and_crashes(machine, in_memory):
    run_state_machine_as_test(
        type(machine.__name__, (machine,), {"in_memory": in_memory}),
        settings=settings(max_examples=examples(15), stateful_step_count=25),
    )
