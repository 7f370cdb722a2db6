"""Keys beyond LMDB's limit are held as their front and a hash, and read back whole (PROTOCOL 18)."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest

from weir.state.changelog.rows import changelog_frame
from weir.state.engine.task_store import LONG_KEYS, MAX_KEY_BYTES, TaskStore
from weir.state.stores.typed import TypedStore
from weir.state.types import IsolationLevel, StateId, StoreKind, StoreSpec

TIME = pl.Datetime("ms", "UTC")
PAGES = StoreSpec(name="pages", key=pl.Schema({"page": pl.String()}), value=pl.Schema({"hits": pl.Int64()}))
WINDOWS = StoreSpec(
    name="windows",
    key=pl.Schema({"page": pl.String(), "window_start": TIME, "window_end": TIME}),
    value=pl.Schema({"hits": pl.Int64()}),
    kind=StoreKind.WINDOW,
)
FRONT = "x" * 600
LONG = [FRONT + "a", FRONT + "b", "é" * 400]


@pytest.fixture
def store(tmp_path):
    store = TaskStore.create(tmp_path / "i", "0_0", ["pages", "windows"])
    yield store
    store.close()


def hits(pages: list[str]) -> pl.DataFrame:
    return pl.DataFrame({"page": pages, "hits": range(len(pages)), "_ts": [0] * len(pages)})


def apply(store: TaskStore, session, epoch: int, expected: StateId | None) -> StateId:
    state = StateId(1, epoch)
    assert (
        store.apply(
            session,
            state=state,
            expected=expected,
            generation=1,
            plan_hash=str(epoch),
            make_receipt=lambda _: b"receipt",
        )
        is not None
    )
    return state


def put(store: TaskStore, spec: StoreSpec, rows: pl.DataFrame, epoch: int, expected: StateId | None) -> StateId:
    with store.session() as session:
        typed = TypedStore(spec, session)
        typed.write(typed.encode(rows), rows)
        return apply(store, session, epoch, expected)


def content(store: TaskStore, spec: StoreSpec, isolation=IsolationLevel.READ_UNCOMMITTED) -> dict[str, int]:
    with store.reader(isolation) as reader:
        typed = TypedStore(spec, reader)
        keys, rows = typed.scan()
        return dict(zip(typed.decode(keys)["page"], rows["hits"], strict=True))


@pytest.mark.parametrize("length", [MAX_KEY_BYTES - 3, MAX_KEY_BYTES - 2, MAX_KEY_BYTES - 1, MAX_KEY_BYTES, 5_000])
def test_keys_around_the_limit_read_back_whole(store, length):
    pages = ["k" * length, "short"]
    put(store, PAGES, hits(pages), 1, None)
    assert content(store, PAGES) == {pages[0]: 0, "short": 1}


def test_keys_that_share_their_front_stay_apart(store):
    put(store, PAGES, hits(LONG), 1, None)
    assert content(store, PAGES) == dict(zip(LONG, range(3), strict=True))
    with store.reader(IsolationLevel.READ_UNCOMMITTED) as reader:
        typed = TypedStore(PAGES, reader)
        assert typed.get(page=LONG[1]) == {"hits": 1, "_ts": 0}
        assert typed.get(page=FRONT + "c") is None


def test_deleting_a_key_deletes_its_whole_form_and_a_rollback_restores_both(store):
    one = put(store, PAGES, hits(LONG), 1, None)
    store.settle(generation=1, expected=one, committed=one)
    with store.session() as session:
        typed = TypedStore(PAGES, session)
        typed.delete(typed.encode(hits(LONG[:2])))
        apply(store, session, 2, one)
    assert content(store, PAGES) == {LONG[2]: 2}
    with store.reader(IsolationLevel.READ_UNCOMMITTED) as reader:
        assert reader.count(LONG_KEYS) == 1
    assert len(content(store, PAGES, IsolationLevel.READ_COMMITTED)) == 3
    store.settle(generation=2, expected=one, committed=one)
    assert content(store, PAGES) == dict(zip(LONG, range(3), strict=True))


def test_the_changelog_has_whole_keys_of_deleted_rows_too(store):
    one = put(store, PAGES, hits(LONG), 1, None)
    with store.session() as session:
        typed = TypedStore(PAGES, session)
        typed.write(typed.encode(hits(["new" * 300])), hits(["new" * 300]))
        typed.delete(typed.encode(hits(LONG[:1])))
        changes = changelog_frame(PAGES, session)
        apply(store, session, 2, one)
    assert dict(changes.select("page", "_deleted").rows()) == {"new" * 300: False, LONG[0]: True}


def test_windows_with_long_keys_are_still_found_by_their_start(store):
    starts = [datetime.fromtimestamp(second, UTC) for second in (10, 20, 30)]
    rows = pl.DataFrame(
        {"page": LONG, "window_start": starts, "window_end": starts, "hits": [1, 2, 3], "_ts": [0] * 3},
        schema_overrides={"window_start": TIME, "window_end": TIME},
    )
    put(store, WINDOWS, rows, 1, None)
    with store.reader(IsolationLevel.READ_UNCOMMITTED) as reader:
        typed = TypedStore(WINDOWS, reader)
        keys, _ = typed.scan(upper=typed.window_upper(30_000))
        assert typed.decode(keys).rows() == rows.head(2).select(WINDOWS.key.names()).rows()


def test_two_stores_may_hold_the_same_long_key(store):
    one = put(store, PAGES, hits(LONG), 1, None)
    other = StoreSpec(name="windows", key=PAGES.key, value=PAGES.value)
    put(store, other, hits(LONG), 2, one)
    with store.session() as session:
        typed = TypedStore(other, session)
        typed.delete(typed.encode(hits(LONG)))
        apply(store, session, 3, StateId(1, 2))
    assert content(store, PAGES) == dict(zip(LONG, range(3), strict=True))
