"""The local store against a plain model, through commits, rollbacks, zombies and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import lmdb
import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import examples
from weir.state.engine import environment
from weir.state.engine import task_store as module
from weir.state.engine.contract import Settlement
from weir.state.engine.meta import Uncommitted
from weir.state.engine.rollback_cost import RollbackCost
from weir.state.engine.task_store import TaskStore
from weir.state.engine.views import open_reader
from weir.state.errors import (
    DiskFullError,
    FencedStoreError,
    MapFullError,
    TaskCorruptedError,
    TransactionClosedError,
    UnknownStoreError,
)
from weir.state.types import IsolationLevel, StateId

COMMITTED, NEWEST = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
STORES = ("a", "b")
KEYS = st.binary(min_size=1, max_size=3)


def receipt_of(uncommitted: Uncommitted) -> bytes:
    return msgspec.msgpack.encode(uncommitted)


def apply(
    store: TaskStore,
    epoch: int,
    expected: StateId | None,
    puts: dict[bytes, bytes],
    deletes: tuple[bytes, ...] = (),
    generation: int = 1,
    name: str = "a",
) -> StateId | None:
    """Run an epoch; its state id, or None if the store refused it."""
    state = StateId(generation, epoch)
    with store.session() as session:
        session.put_many(name, list(puts), list(puts.values()))
        session.delete_many(name, deletes)
        done = store.apply(
            session,
            state=state,
            expected=expected,
            generation=generation,
            plan_hash=f"plan {state}",
            make_receipt=receipt_of,
        )
    return None if done is None else state


def rows(store: TaskStore, isolation: IsolationLevel = NEWEST, name: str = "a") -> dict[bytes, bytes]:
    with store.reader(isolation) as reader:
        return dict(reader.scan(name))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "0_0" / "instance"


@pytest.fixture
def store(folder: Path):
    store = TaskStore.create(folder, "0_0", STORES)
    yield store
    store.close()


class StoreModel(RuleBasedStateMachine):
    """Random epochs, commits, rollbacks and reopenings; the store must equal two dictionaries."""

    @initialize()
    def create(self) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name) / "i"
        self.store = TaskStore.create(self.folder, "0_0", STORES)
        self.newest: dict[str, dict[bytes, bytes]] = {name: {} for name in STORES}
        self.committed: dict[str, dict[bytes, bytes]] = {name: {} for name in STORES}
        self.current: StateId | None = None
        self.base: StateId | None = None
        self.generation, self.epoch = 1, 0

    @rule(
        puts=st.dictionaries(KEYS, st.binary(max_size=5), max_size=8),
        deletes=st.lists(KEYS, max_size=5),
        name=st.sampled_from(STORES),
        again=st.dictionaries(KEYS, st.binary(max_size=5), max_size=3),
    )
    def run_epoch(self, puts, deletes, name, again) -> None:
        self.epoch += 1
        state = StateId(self.generation, self.epoch)
        assert (
            self.store.settle(generation=self.generation, expected=self.current, committed=self.base)
            is Settlement.READY
        )
        before = dict(self.newest[name])
        model = self.newest[name]
        with self.store.session() as session:
            session.put_many(name, list(puts), list(puts.values()))
            model.update(puts)
            session.delete_many(name, deletes)
            for key in deletes:
                model.pop(key, None)
            session.put_many(name, list(again), list(again.values()))
            model.update(again)
            wanted = [*puts, *deletes, *again, b"zz"]
            assert session.get_many(name, wanted) == [model.get(key) for key in wanted]
            assert list(session.scan(name)) == sorted(model.items())
            assert list(session.scan(name, b"\x20", b"\x90", reverse=True)) == sorted(
                ((k, v) for k, v in model.items() if b"\x20" <= k < b"\x90"), reverse=True
            )
            assert session.count(name) == len(model)
            changes = session.changes(name)
            assert {
                **{k: v for k, v in before.items() if k not in changes},
                **{k: v for k, v in changes.items() if v is not None},
            } == model
            assert all(value is not None or key in before for key, value in changes.items())
            receipt = self.store.apply(
                session,
                state=state,
                expected=self.current,
                generation=self.generation,
                plan_hash=f"plan {state}",
                make_receipt=receipt_of,
            )
        assert receipt is not None
        assert self.store.stored_receipt(f"plan {state}") == receipt
        self.current = state

    @rule()
    def commit(self) -> None:
        assert (
            self.store.settle(generation=self.generation, expected=self.current, committed=self.current)
            is Settlement.READY
        )
        self.base = self.current
        self.committed = {name: dict(model) for name, model in self.newest.items()}
        assert self.store.uncommitted == Uncommitted()

    @precondition(lambda self: self.current != self.base)
    @rule()
    def roll_back(self) -> None:
        self.generation += 1
        assert (
            self.store.settle(generation=self.generation, expected=self.base, committed=self.base)
            is Settlement.ROLLED_BACK
        )
        assert self.store.stored_receipt(f"plan {self.current}") is None
        self.current = self.base
        self.newest = {name: dict(model) for name, model in self.committed.items()}

    @rule(clean=st.booleans())
    def reopen(self, clean) -> None:
        self.store.close(clean=clean)
        self.store = TaskStore.open(self.folder, "0_0", STORES)

    @invariant()
    def holds_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        assert (self.store.current, self.store.base) == (self.current, self.base)
        for isolation, model in ((NEWEST, self.newest), (COMMITTED, self.committed)):
            with self.store.reader(isolation) as reader:
                for name in STORES:
                    assert list(reader.scan(name)) == sorted(model[name].items())
                    assert list(reader.scan(name, b"\x30", b"\xa0", reverse=True)) == sorted(
                        ((k, v) for k, v in model[name].items() if b"\x30" <= k < b"\xa0"), reverse=True
                    )
                    keys = [*self.newest[name], *self.committed[name], b"zz"]
                    assert reader.get_many(name, keys) == [model[name].get(key) for key in keys]
                    assert reader.count(name) == len(model[name])

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.temporary.cleanup()


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(max_examples=examples(25), stateful_step_count=20)


def test_undo_keeps_the_first_image_over_several_epochs(store):
    one = apply(store, 1, None, {b"k": b"1"})
    store.settle(generation=1, expected=one, committed=one)
    two = apply(store, 2, one, {b"k": b"2", b"new": b"x", b"kept": b"y"})
    apply(store, 3, two, {b"k": b"3"}, deletes=(b"new",))
    assert rows(store, COMMITTED) == {b"k": b"1"}
    assert store.settle(generation=2, expected=one, committed=one) is Settlement.ROLLED_BACK
    assert rows(store) == {b"k": b"1"}
    assert store.uncommitted == Uncommitted()


def test_uncommitted_counts_bytes_written_and_distinct_keys(store):
    one = apply(store, 1, None, {b"k": b"123"})
    apply(store, 2, one, {b"k": b"12", b"l": b""})
    assert store.uncommitted == Uncommitted(bytes=8, records=2, rollback_us=RollbackCost(2, 1).us())


def test_the_task_store_rolls_back_with_the_rest(store):
    one = apply(store, 1, None, {b"topic-0": b"7"}, name=module.TASK_STORE)
    store.settle(generation=1, expected=one, committed=one)
    apply(store, 2, one, {b"topic-0": b"9"}, name=module.TASK_STORE)
    store.settle(generation=2, expected=one, committed=one)
    assert rows(store, name=module.TASK_STORE) == {b"topic-0": b"7"}


@pytest.mark.parametrize(
    ("expected", "committed"),
    [(StateId(9, 9), StateId(9, 9)), (None, None), (StateId(1, 3), StateId(1, 1)), (StateId(9, 9), StateId(1, 1))],
)
def test_a_store_with_neither_state_needs_a_restore_and_keeps_its_rows(store, expected, committed):
    one = apply(store, 1, None, {b"k": b"1"})
    store.settle(generation=1, expected=one, committed=one)
    two = apply(store, 2, one, {b"k": b"2"})
    assert store.settle(generation=2, expected=expected, committed=committed) is Settlement.NEEDS_RESTORE
    assert (store.current, store.base, store.generation) == (two, one, 2)
    assert rows(store) == {b"k": b"2"}


def test_an_older_generation_is_fenced_at_settling_and_refused_at_apply(store):
    """PROTOCOL 6: a cancelled Spark task lives on while its successor settles."""
    one = apply(store, 1, None, {b"k": b"1"})
    with store.session() as zombie:
        zombie.put_many("a", [b"k"], [b"zombie"])
        assert store.settle(generation=2, expected=one, committed=one) is Settlement.READY
        assert (
            store.apply(
                zombie, state=StateId(1, 2), expected=one, generation=1, plan_hash="late", make_receipt=receipt_of
            )
            is None
        )
    with pytest.raises(FencedStoreError, match="generation 1"):
        store.settle(generation=1, expected=one, committed=one)
    assert rows(store) == {b"k": b"1"}
    assert store.current == one


def test_of_two_sessions_on_one_state_the_second_to_apply_has_no_effect(store):
    with store.session() as first, store.session() as second:
        for session, value in ((first, b"first"), (second, b"second")):
            session.put_many("a", [b"k"], [value])
        results = [
            store.apply(
                session, state=StateId(1, 1), expected=None, generation=1, plan_hash=name, make_receipt=receipt_of
            )
            for session, name in ((first, "p1"), (second, "p2"))
        ]
    assert results[1] is None
    assert rows(store) == {b"k": b"first"}
    assert store.stored_receipt("p2") is None


@pytest.mark.slow
def test_a_full_map_leaves_no_effect_and_the_same_session_applies_after_growing(store):
    big = {f"{n:06}".encode(): os.urandom(4000) for n in range(20_000)}
    with store.session() as session:
        session.put_many("a", list(big), list(big.values()))
        arguments = dict(state=StateId(1, 1), expected=None, generation=1, plan_hash="p", make_receipt=receipt_of)
        with pytest.raises(MapFullError):
            store.apply(session, **arguments)
        assert store.current is None
        assert rows(store) == {}
        store.grow()
        assert store.apply(session, **arguments) is not None
    assert rows(store) == big


def test_a_store_does_not_grow_under_an_open_session(store):
    with store.session(), pytest.raises(RuntimeError, match="session"):
        store.grow()


def test_a_full_disk_is_found_before_anything_is_written(store, monkeypatch):
    monkeypatch.setattr(environment, "FREE_DISK_RESERVE_BYTES", 1 << 60)
    with pytest.raises(DiskFullError, match="free some space"):
        apply(store, 1, None, {b"k": b"1"})
    assert rows(store) == {}


def test_unknown_stores_and_ended_sessions_are_named_and_a_new_one_reads_on(store):
    apply(store, 1, None, {b"k": b"1"})
    with store.session() as session, pytest.raises(UnknownStoreError, match="'_task', 'a', 'b'"):
        session.get_many("c", [b"k"])
    with pytest.raises(TransactionClosedError, match=r"begin a new one with TaskStore.session\(\)"):
        session.get_many("a", [b"k"])
    with store.session() as session:
        assert session.get_many("a", [b"k"]) == [b"1"]


def test_a_bulk_load_is_committed_and_needs_sorted_rows_and_a_new_instance(store, tmp_path):
    loaded = [(f"{n:06}".encode(), b"v") for n in range(25_000)]
    halves = [tuple(zip(*part, strict=True)) for part in (loaded[:9_000], loaded[9_000:])]
    store.bulk_load({"a": iter(halves), "b": []}, state=StateId(3, 7), generation=4)
    assert rows(store, COMMITTED) == rows(store) == dict(loaded)
    assert (store.current, store.base, store.generation) == (StateId(3, 7), StateId(3, 7), 4)
    with pytest.raises(ValueError, match="new instance"):
        store.bulk_load({"a": halves}, state=None, generation=4)
    other = TaskStore.create(tmp_path / "other", "0_0", STORES)
    with pytest.raises(ValueError, match="sorted"):
        other.bulk_load({"a": [([b"b", b"a"], [b"", b""])]}, state=None, generation=1)
    other.close()


def test_store_ids_stay_when_stores_are_added(store, folder):
    one = apply(store, 1, None, {b"k": b"1"}, name="b")
    store.close()
    reopened = TaskStore.open(folder, "0_0", ["0", "b"])
    try:
        assert reopened.settle(generation=2, expected=None, committed=None) is Settlement.ROLLED_BACK
        assert rows(reopened, name="b") == rows(reopened, name="0") == {}
        assert one is not None
    finally:
        reopened.close()


READER = """
import sys
from pathlib import Path
from weir.state.engine.views import open_reader
from weir.state.types import IsolationLevel
for isolation in ("read_committed", "read_uncommitted"):
    with open_reader(Path(sys.argv[1]), IsolationLevel(isolation)) as reader:
        print(dict(reader.scan("a")), reader.get_many("a", [b"k", b"new"]), reader.count("a"))
"""


def test_another_process_chooses_its_isolation_level_while_the_task_runs(store, folder):
    one = apply(store, 1, None, {b"k": b"1"})
    store.settle(generation=1, expected=one, committed=one)
    apply(store, 2, one, {b"new": b"2"}, deletes=(b"k",))
    with store.session():
        lines = subprocess.run(
            [sys.executable, "-c", READER, str(folder)], capture_output=True, text=True, check=True, timeout=30
        ).stdout.splitlines()
    assert lines == ["{b'k': b'1'} [b'1', None] 1", "{b'new': b'2'} [None, b'2'] 1"]


GROWER = """
import sys
from pathlib import Path
from weir.state.engine.task_store import TaskStore
from weir.state.types import StateId
store = TaskStore.open(Path(sys.argv[1]), "0_0", ["a", "b"])
with store.session() as session:
    session.put_many("a", [b"big"], [bytes(4 << 20)])
    store.apply(session, state=StateId(1, 1), expected=None, generation=1, plan_hash="", make_receipt=lambda _: b"")
"""


def test_an_open_store_follows_the_map_that_another_process_has_outgrown(tmp_path, monkeypatch):
    """PROTOCOL 18: a task's next epoch may run in another worker, and the one after it in this one again."""
    monkeypatch.setattr(environment, "INITIAL_MAP_BYTES", 1 << 20)
    store = TaskStore.create(tmp_path / "0_0" / "instance", "0_0", STORES)
    subprocess.run([sys.executable, "-c", GROWER, str(store.folder)], check=True, timeout=30)
    assert store.current == StateId(1, 1)
    assert rows(store) == {b"big": bytes(4 << 20)}
    store.close()


@pytest.mark.slow
def test_a_reader_in_another_process_follows_a_grown_map(store, folder):
    one = apply(store, 1, None, {b"k": b"1"})
    store.settle(generation=1, expected=one, committed=one)
    for _ in range(3):
        store.grow()
    big = {f"{n:06}".encode(): os.urandom(4000) for n in range(20_000)}
    two = apply(store, 2, one, big)
    assert two is not None
    lines = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys;from pathlib import Path;"
            "from weir.state.engine.views import open_reader;"
            "from weir.state.types import IsolationLevel as I\n"
            "with open_reader(Path(sys.argv[1]), I.READ_UNCOMMITTED) as r: print(r.count('a'))",
            str(folder),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    assert lines.strip() == "20001"


WRITER = """
import sys
from pathlib import Path
from weir.state.engine.task_store import TaskStore
from weir.state.types import StateId
store = TaskStore.open(Path(sys.argv[1]), "0_0", ["a", "b"])
expected, epoch, generation = store.base, (store.base.epoch if store.base else 0), int(sys.argv[2])
while True:
    committed = expected if epoch % 3 == 0 else store.base
    store.settle(generation=generation, expected=expected, committed=committed)
    epoch += 1
    state = StateId(generation, epoch)
    with store.session() as session:
        keys = [b"%05d" % (n * 7919 % 3000) for n in range(epoch * 50, epoch * 50 + 400)]
        values = [b"%d" % epoch] * len(keys)
        session.put_many("a", keys, values)
        session.put_many("b", [b"epoch"], [b"%d" % epoch])
        session.delete_many("a", [b"%05d" % (epoch * 13 % 3000)])
        assert store.apply(session, state=state, expected=expected, generation=generation, plan_hash=str(state),
                           make_receipt=lambda uncommitted: b"r") is not None
    expected = state
    print(epoch, flush=True)
"""


def model_after(epochs: int) -> dict[bytes, bytes]:
    model: dict[bytes, bytes] = {}
    for epoch in range(1, epochs + 1):
        for n in range(epoch * 50, epoch * 50 + 400):
            model[b"%05d" % (n * 7919 % 3000)] = b"%d" % epoch
        model.pop(b"%05d" % (epoch * 13 % 3000), None)
    return model


@pytest.mark.slow
def test_kill_9_at_random_times_loses_nothing_and_rolls_back_to_the_commit(store, folder):
    """PROTOCOL 19: a process crash is trusted; both the newest and the committed rows are those of whole epochs."""
    store.close()
    rolled_back = 0
    for generation in range(1, 7):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), str(generation)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(3 + 4 * generation):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=30)
        child.stdout.close()
        survivor = TaskStore.open(folder, "0_0", STORES)
        try:
            assert survivor.current is not None
            assert rows(survivor) == model_after(survivor.current.epoch)
            assert rows(survivor, name="b") == {b"epoch": b"%d" % survivor.current.epoch}
            base = survivor.base
            committed = model_after(base.epoch if base else 0)
            assert rows(survivor, COMMITTED) == committed
            outcome = survivor.settle(generation=generation, expected=base, committed=base)
            rolled_back += outcome is Settlement.ROLLED_BACK
            assert rows(survivor) == committed
        finally:
            survivor.close()
    assert rolled_back > 0


def test_opening_a_reader_on_nothing_is_one_clear_error(tmp_path):
    with pytest.raises(TaskCorruptedError, match="0_0"), open_reader(tmp_path / "0_0" / "gone", NEWEST):
        pass


def test_a_full_disk_is_found_before_a_rollback_or_a_restore_writes(store, monkeypatch):
    """PROTOCOL 18: when the disk fills up under a write map, the process dies, so room is checked first."""
    one = apply(store, 1, None, {b"k": b"1"})
    store.settle(generation=1, expected=one, committed=one)
    apply(store, 2, one, {b"k": b"2"})
    with monkeypatch.context() as full:
        full.setattr(environment, "FREE_DISK_RESERVE_BYTES", 1 << 60)
        with pytest.raises(DiskFullError):
            store.settle(generation=2, expected=one, committed=one)
    assert rows(store) == {b"k": b"2"}
    assert store.settle(generation=2, expected=one, committed=one) is Settlement.ROLLED_BACK


def test_a_bulk_load_checks_for_room_on_the_disk_first(store, monkeypatch):
    monkeypatch.setattr(environment, "FREE_DISK_RESERVE_BYTES", 1 << 60)
    with pytest.raises(DiskFullError, match="free some space"):
        store.bulk_load({"a": [([b"k"], [b"v"])]}, state=StateId(1, 1), generation=1)
    assert rows(store) == {}


@pytest.mark.parametrize("size", [10, 500, 1_500, 3_000, 5_000, 70_000, 670_000])
def test_what_is_asked_of_the_disk_is_enough_for_values_of_any_size(store, monkeypatch, size):
    """The room that is asked for before a transaction, against the pages that the file has afterwards."""
    asked = []
    monkeypatch.setattr(environment, "require_room", lambda where, task_id, needed: asked.append(needed))

    def pages() -> int:
        return store._databases.environment.info()["last_pgno"] * environment.PAGE_BYTES

    def check(write) -> None:
        asked.clear()
        before = pages()
        write()
        assert pages() - before <= max(asked) - environment.FREE_DISK_RESERVE_BYTES

    store._databases.environment.set_mapsize(1 << 30)
    rows_of = [{b"%04d" % number: bytes([number % 251 + change]) * size for number in range(100)} for change in (0, 1)]
    check(lambda: apply(store, 1, None, rows_of[0]))
    one = StateId(1, 1)
    store.settle(generation=1, expected=one, committed=one)
    check(lambda: apply(store, 2, one, rows_of[1]))
    check(lambda: store.settle(generation=2, expected=one, committed=one))
    assert rows(store) == rows_of[0]


def test_the_figures_are_those_that_lmdb_itself_has(tmp_path):
    """Looked up in the file once the store is closed."""
    store = TaskStore.create(tmp_path / "one", "0_0", ["small", "large"])
    rows = {b"%06d" % number: b"x" * 50 for number in range(5_000)}
    with store.session() as session:
        session.put_many("large", list(rows), list(rows.values()))
        session.put_many("small", [b"k"], [b"v"])
        store.apply(
            session, state=StateId(1, 1), expected=None, generation=1, plan_hash="", make_receipt=lambda held: b""
        )
    store.settle(generation=1, expected=StateId(1, 1), committed=StateId(1, 1))
    found = store.figures(with_stores=True)
    assert found.apply_ms.count == found.commit_ms.count == 1
    assert found.apply_ms_of.keys() == found.commit_ms_of.keys() == {"small", "large"}
    assert found.apply_ms.total >= sum(each.total for each in found.apply_ms_of.values()) > 0
    again = store.figures(with_stores=False)
    assert again.apply_ms.count == 0, "durations are told once"
    assert (again.rows, again.stores) == (found.rows, {}) == (5_001, {})
    store.close()
    with lmdb.open(str(tmp_path / "one"), max_dbs=9, readonly=True) as there:
        assert there.info()["last_pgno"] * 4096 <= found.used_bytes <= found.map_bytes
        for name, figures in found.stores.items():
            with there.begin() as txn:
                stat = txn.stat(there.open_db(name.encode(), txn=txn, create=False))
            pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
            assert (figures.rows, figures.pages, figures.depth) == (stat["entries"], pages, stat["depth"])
    assert found.stores["large"].rows == 5_000
    assert found.stores["large"].pages > 5_000 * 56 / 4096 > found.stores["small"].pages == 1
