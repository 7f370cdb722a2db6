"""A task's rows in a store of the user's: what it is given and when, crashes at each step, stores that fall behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.state.engine.own_store import Dying, InMemory, InSqlite, InSqliteWithOffsets
from weir.state.engine.contract import Settlement
from weir.state.engine.memory import MemoryStore
from weir.state.engine.task_store import TaskStore
from weir.state.errors import FencedStoreError, OwnStoreBehindError, OwnStoreError, TaskCorruptedError
from weir.state.types import IsolationLevel, StateId

COMMITTED, NEWEST = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
OWN, BUILT_IN = "own", "built_in"
CHANGELOG = "_changelog/own"


def apply(store, number: int, expected: StateId | None, changes: dict[bytes, bytes | None]) -> StateId:
    """Write ``changes`` to both stores as epoch ``number``; None deletes."""
    state = StateId(1, number)
    with store.session() as session:
        for name in (OWN, BUILT_IN):
            puts = {key: value for key, value in changes.items() if value is not None}
            session.put_many(name, list(puts), list(puts.values()))
            session.delete_many(name, [key for key, value in changes.items() if value is None])
        assert store.apply(
            session,
            state=state,
            expected=expected,
            generation=1,
            plan_hash=str(number),
            make_receipt=lambda _: b"receipt",
        )
    return state


def rows(store, isolation: IsolationLevel = NEWEST, name: str = OWN) -> dict[bytes, bytes]:
    with store.reader(isolation) as reader:
        found = dict(reader.scan(name))
        assert reader.count(name) == len(found)
        assert list(reversed(found)) == [key for key, _ in reader.scan(name, reverse=True)]
        assert reader.get_many(name, [*found, b"nothing"]) == [*found.values(), None]
        assert reader.first(name) == next(iter(found.items()), None)
    return found


def commit(store, state: StateId | None) -> Settlement:
    return store.settle(generation=1, expected=state, committed=state)


def in_files(folder: Path, supplier):
    return TaskStore.create(folder, "0_0", [OWN, BUILT_IN], {OWN: supplier})


@pytest.fixture(params=["lmdb, sqlite", "lmdb, offsets", "lmdb, dict", "memory, dict"])
def store(request, tmp_path):
    kinds = {"lmdb, sqlite": InSqlite, "lmdb, offsets": InSqliteWithOffsets, "lmdb, dict": InMemory}
    if request.param in kinds:
        made = in_files(tmp_path / "task" / "first", kinds[request.param])
    else:
        made = MemoryStore("0_0", [OWN, BUILT_IN], {OWN: InMemory(tmp_path)})
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_store_of_ones_own_answers_as_a_plain_dictionary_over_epochs_commits_and_rollbacks(store, seed):
    """PROTOCOL 32."""
    chance = random.Random(seed)
    newest: dict[bytes, bytes] = {}
    committed, current, base = dict(newest), None, None
    for number in range(1, 60):
        changes = {
            b"%02d" % chance.randrange(30): chance.choice([None, b"", b"\x00", b"%d" % number])
            for _ in range(chance.randrange(8))
        }
        current = apply(store, number, current, changes)
        for key, value in changes.items():
            newest.pop(key, None) if value is None else newest.__setitem__(key, value)
        if chance.random() < 0.3:
            assert commit(store, current) is Settlement.READY
            committed, base = dict(newest), current
        elif chance.random() < 0.2:
            assert commit(store, base) is Settlement.ROLLED_BACK
            newest, current = dict(committed), base
        for name in (OWN, BUILT_IN):
            assert rows(store, NEWEST, name) == newest
            assert rows(store, COMMITTED, name) == committed


def test_a_store_of_ones_own_gets_only_committed_rows_and_the_offset_of_the_changelog(tmp_path):
    store = in_files(tmp_path / "first", InSqliteWithOffsets)
    own = store._backing.stores[OWN]
    one = apply(store, 1, None, {b"a": b"1", b"b": b"1"})
    assert own.get(b"a") is None
    commit(store, one)
    assert (own.get(b"a"), own.committed_offset(CHANGELOG, 0)) == (b"1", 2)
    two = apply(store, 2, one, {b"a": b"2", b"b": None})
    three = apply(store, 3, two, {b"a": b"3"})
    assert (own.get(b"a"), own.get(b"b"), own.committed_offset(CHANGELOG, 0)) == (b"1", b"1", 2)
    commit(store, three)
    assert (own.get(b"a"), own.get(b"b"), own.committed_offset(CHANGELOG, 0)) == (b"3", None, 4)
    store.close()


def test_everything_but_get_and_put_has_a_default(tmp_path):
    own = InMemory(tmp_path)
    own.put_all([(b"a", b"1"), (b"b", b"2"), (b"a", None)])
    assert own.get_many([b"a", b"b"]) == [None, b"2"]
    own.commit({CHANGELOG: {0: 5}})
    own.close()
    assert own.committed_offset(CHANGELOG, 0) is None
    assert (own.manages_offsets(), own.is_persistent(), own.approximate_num_uncommitted_bytes()) == (False, False, 0)


WRITER = """
import sys
from pathlib import Path
from tests.state.engine.own_store import Dying
from tests.state.engine.test_backing import OWN, BUILT_IN, apply, commit
from weir.state.engine.task_store import TaskStore
store = TaskStore.open(Path(sys.argv[1]), "0_0", [OWN, BUILT_IN], {OWN: Dying})
three = apply(store, 3, store.current, {b"a": b"3", b"b": None, b"e": b"3"})
print("applied", flush=True)
commit(store, three)
"""


@pytest.mark.parametrize("step", ["before the rows", "between two rows", "after the rows", "after its commit"])
def test_kill_9_at_each_step_of_handing_rows_over_leaves_the_commit_whole(tmp_path, step):
    """PROTOCOL 32: whatever reached the store, the rows are those of the commit, before and after it hears of it."""
    folder = tmp_path / "first"
    store = in_files(folder, Dying)
    one = apply(store, 1, None, {b"a": b"1", b"b": b"1", b"c": b"1"})
    commit(store, one)
    apply(store, 2, one, {b"a": b"2", b"c": None, b"d": b"2"})
    store.close()
    died = subprocess.run(
        [sys.executable, "-c", WRITER, str(folder)],
        env={**os.environ, "DIE_AT": step},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    wanted = {b"a": b"3", b"d": b"2", b"e": b"3"}
    survivor = TaskStore.open(folder, "0_0", [OWN, BUILT_IN], {OWN: Dying})
    assert (survivor.base, rows(survivor)) == (one, wanted)
    assert commit(survivor, StateId(1, 3)) is Settlement.READY
    assert rows(survivor) == rows(survivor, COMMITTED) == rows(survivor, NEWEST, BUILT_IN) == wanted
    own = survivor._backing.stores[OWN]
    assert [own.get(key) for key in (b"a", b"b", b"c", b"d", b"e")] == [b"3", None, None, b"2", b"3"]
    survivor.close()


def test_an_older_driver_hands_nothing_over(tmp_path):
    """PROTOCOL 32: a worker of a fenced driver wakes up and is told of its commit."""
    store = in_files(tmp_path / "first", InSqlite)
    one = apply(store, 1, None, {b"a": b"1"})
    store.settle(generation=2, expected=None, committed=None)
    assert rows(store) == {}
    with pytest.raises(FencedStoreError):
        store.settle(generation=1, expected=one, committed=one)
    assert store._backing.stores[OWN].get(b"a") is None
    store.close()


def test_a_store_in_memory_is_behind_in_a_new_process_until_it_is_filled(tmp_path):
    folder = tmp_path / "first"
    store = in_files(folder, InMemory)
    one = apply(store, 1, None, {b"a": b"1", b"b": b"1"})
    commit(store, one)
    store.close()
    again = TaskStore.open(folder, "0_0", [OWN, BUILT_IN], {OWN: InMemory})
    with pytest.raises(OwnStoreBehindError) as behind:
        commit(again, one)
    assert (behind.value.above, behind.value.base) == ({OWN: -1}, one)
    again.fill(OWN, [([b"a", b"b"], [b"1", b"1"])], one)
    assert commit(again, one) is Settlement.READY
    assert rows(again) == {b"a": b"1", b"b": b"1"}
    again.close()


def test_a_store_with_offsets_that_lost_a_commit_says_from_where_it_is_filled(tmp_path):
    """KIP-892: a store may be behind its changelog after a crash, for example one that does not sync."""
    folder = tmp_path / "first"
    store = in_files(folder, InSqliteWithOffsets)
    one = apply(store, 1, None, {b"a": b"1", b"b": b"1"})
    commit(store, one)
    kept = (folder / "own" / OWN / "rows.sqlite").read_bytes()
    two = apply(store, 2, one, {b"a": b"2", b"b": None})
    commit(store, two)
    store.close()
    (folder / "own" / OWN / "rows.sqlite").write_bytes(kept)
    again = TaskStore.open(folder, "0_0", [OWN, BUILT_IN], {OWN: InSqliteWithOffsets})
    three = apply(again, 3, two, {b"c": b"3"})
    with pytest.raises(OwnStoreBehindError) as behind:
        commit(again, three)
    assert (behind.value.above, behind.value.base) == ({OWN: 1}, two)
    again.fill(OWN, [([b"a", b"b"], [b"2", None])], two)
    commit(again, three)
    assert rows(again) == {b"a": b"2", b"c": b"3"}
    assert again._backing.stores[OWN].committed_offset(CHANGELOG, 0) == 4
    again.close()


def test_a_fill_that_breaks_off_is_done_again(tmp_path):
    """PROTOCOL 32: its rows may have reached the store or not; the offset has not."""
    folder = tmp_path / "first"
    store = in_files(folder, InSqliteWithOffsets)
    empty = (folder / "own" / OWN / "rows.sqlite").read_bytes()
    one = apply(store, 1, None, {b"a": b"1", b"b": b"1"})
    commit(store, one)
    store.close()
    (folder / "own" / OWN / "rows.sqlite").write_bytes(empty)

    def broken():
        yield [b"a"], [b"1"]
        raise KeyboardInterrupt

    again = TaskStore.open(folder, "0_0", [OWN, BUILT_IN], {OWN: InSqliteWithOffsets})
    with pytest.raises(KeyboardInterrupt):
        again.fill(OWN, broken(), one)
    with pytest.raises(OwnStoreBehindError):
        commit(again, one)
    again.fill(OWN, [([b"a", b"b"], [b"1", b"1"])], one)
    assert commit(again, one) is Settlement.READY
    assert rows(again) == {b"a": b"1", b"b": b"1"}
    again.fill(OWN, [([b"a"], [b"late"])], StateId(1, 9))
    assert rows(again) == {b"a": b"1", b"b": b"1"}, "what another process has overtaken has no effect"
    again.close()


def test_a_row_that_a_persistent_store_has_lost_makes_the_task_restore(tmp_path):
    store = in_files(tmp_path / "first", InSqlite)
    commit(store, apply(store, 1, None, {b"a": b"1"}))
    store._backing.stores[OWN].put(b"a", None)
    with store.session() as session, pytest.raises(TaskCorruptedError, match="behind 'own' has lost the row of key"):
        session.get_many(OWN, [b"a"])
    store.close()


def test_an_instance_of_a_program_that_kept_the_rows_elsewhere_is_not_used(tmp_path):
    in_files(tmp_path / "one", InSqlite).close()
    with pytest.raises(TaskCorruptedError, match="kept the values of 'own' in a store of your own"):
        TaskStore.open(tmp_path / "one", "0_0", [OWN, BUILT_IN])
    TaskStore.create(tmp_path / "two", "0_0", [OWN, BUILT_IN]).close()
    with pytest.raises(TaskCorruptedError, match="kept the values of 'own' out of a store of your own"):
        TaskStore.open(tmp_path / "two", "0_0", [OWN, BUILT_IN], {OWN: InSqlite})


class Forgetful(InSqlite):
    def manages_offsets(self):
        return True


class Broken(InSqlite):
    def put(self, key, value):
        raise OSError("no space")


@pytest.mark.parametrize(
    ("supplier", "reason"),
    [
        (Forgetful, r"manages its offsets, but after commit\(2\) it is at 0"),
        (Broken, "could not put rows: OSError: no space"),
    ],
)
def test_a_store_that_fails_leaves_the_task_as_it_was(tmp_path, supplier, reason):
    store = in_files(tmp_path / "first", supplier)
    one = apply(store, 1, None, {b"a": b"1"})
    with pytest.raises(OwnStoreError, match=f"task 0_0: your own store behind 'own' {reason}"):
        commit(store, one)
    assert (store.base, rows(store), rows(store, COMMITTED)) == (None, {b"a": b"1"}, {})
    store.close()


class Speechless(InMemory):
    def approximate_num_uncommitted_bytes(self):
        raise ValueError("no idea")


def test_what_stores_of_the_users_hold_is_asked_and_one_that_fails_is_named(tmp_path):
    class Holding(InMemory):
        def approximate_num_uncommitted_bytes(self):
            return 7

    for supplier, held in ((InMemory, 0), (Holding, 7)):
        store = in_files(tmp_path / supplier.__name__, supplier)
        assert store.own_uncommitted_bytes == held
        store.close()
    store = in_files(tmp_path / "speechless", Speechless)
    with pytest.raises(OwnStoreError, match="behind 'own' could not say how much is uncommitted: ValueError: no idea"):
        _ = store.own_uncommitted_bytes
    store.close()
