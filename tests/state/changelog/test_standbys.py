"""A standby follows the commits of its task; promoted, it equals the lost store (by the content of the epochs)."""

from __future__ import annotations

import fcntl
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.state.changelog.epochs import SPECS, TOTALS, content, run_epoch
from weir.state.changelog import restore
from weir.state.changelog.restore import RestoreProgress, restore_task
from weir.state.changelog.rows import changelog_spec
from weir.state.changelog.snapshot import publish_snapshot
from weir.state.changelog.standby import follow
from weir.state.commit.evolution import TOMBSTONE_HORIZON
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, SnapshotRef, TaskCommit
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.doubts import Doubt, put_in_doubt
from weir.state.engine.in_memory import place
from weir.state.engine.standby import Left, StandbyError, reached_by, reading_standby, standby_of
from weir.state.engine.task_store import TASK_STORE, TaskStore
from weir.state.types import IsolationLevel, StateId

TASK = "0_0"


@dataclass
class Life:
    """A task whose epochs are committed, and the folder of its standby on another executor."""

    folder: Path
    rng: random.Random
    epoch: int = 0
    contents: dict[int, dict[str, list]] = field(default_factory=dict)
    snapshot: SnapshotRef | None = None
    left: Left | None = None

    def __post_init__(self) -> None:
        self.app, self.task = self.folder / "warehouse" / "app", self.folder / "elsewhere" / TASK
        self._driver = Committer(self.app.parent, "app", [changelog_spec(spec) for spec in SPECS], fingerprint="f")
        self._driver.claim()
        instance = self.folder / "state" / TASK / "one"
        TaskStore.create(instance, TASK, ["totals", "windows"]).close()
        self.store = TaskStoreCache.get(instance, TASK, ["totals", "windows"])

    def run(self, epochs: int) -> None:
        for _ in range(epochs):
            self._run_one()
            self._hear()

    def _run_one(self) -> None:
        expected = StateId(1, self.epoch) if self.epoch else None
        self.epoch += 1
        files = run_epoch(self.store, self.app, self.epoch, expected, self.rng)
        self._driver.commit(
            CommitRecord(
                kind="commit",
                generation=1,
                epoch=self.epoch,
                at_ms=1_000 * self.epoch,
                fingerprint="f",
                files=tuple(files),
            )
        )

    def _hear(self) -> None:
        state = StateId(1, self.epoch)
        self.store.settle(generation=1, expected=state, committed=state)
        self.contents[self.epoch] = content(self.store)

    def leave(self, *, has_heard: bool = True, ahead: int = 0) -> Path:
        """Run an epoch more and go on with a copy elsewhere; what is left, which is returned, may not have heard of the
        commit, and have done epochs that are in none. From now on the standby is where that is."""
        self._run_one()
        if has_heard:
            self._hear()
        instance, there = self.store.folder, self.folder / "moved" / TASK / "two"
        TaskStoreCache.close_all()
        shutil.copytree(instance, there)
        store = TaskStore.open(instance, TASK, ["totals", "windows"])
        for epoch in range(self.epoch, self.epoch + ahead):
            run_epoch(store, self.app, epoch + 1, StateId(1, epoch), random.Random(9))
        store.close()
        self.store = TaskStoreCache.get(there, TASK, ["totals", "windows"])
        self._hear()
        self.task, self.left = instance.parent, Left(instance=instance.name, state=StateId(1, self.epoch))
        return instance

    def publish(self) -> None:
        self.snapshot = publish_snapshot(self.app, self.store.folder, TASK)

    @property
    def commit(self) -> TaskCommit:
        return TaskCommit(state=StateId(1, self.epoch), instance="one", snapshot=self.snapshot)

    def arguments(self, generation: int) -> dict[str, Any]:
        """Those of ``follow``."""
        return {
            "app_folder": self.app,
            "task": self.task,
            "task_id": TASK,
            "specs": SPECS,
            "commit": self.commit,
            "through": StateId(1, self.epoch),
            "generation": generation,
            "task_rows": self.contents[self.epoch][TASK_STORE],
            "left": self.left,
            "at_ms": 1_000 * self.epoch,
        }

    def follow(self, generation: int = 1, **others: Any) -> int:
        return follow(**self.arguments(generation) | others)

    def promoted(
        self, generation: int = 1, left: Left | None = None, before: int | None = None
    ) -> tuple[dict[str, list], str]:
        """The content that a restore gives where the standby is, and the source that it reports."""
        state, seen = StateId(1, self.epoch), list[RestoreProgress]()
        store = restore_task(
            self.app,
            self.task / f"instance-{generation}",
            TASK,
            SPECS,
            self.commit,
            state,
            generation=generation,
            task_rows=self.contents[self.epoch][TASK_STORE],
            standby=self.task,
            left=left,
            before=before,
            on_progress=seen.append,
        )
        try:
            assert (store.current, store.base, store.generation) == (state, state, generation)
            return content(store), seen[-1].source
        finally:
            store.close()


@pytest.fixture
def life(tmp_path) -> Iterator[Life]:
    yield Life(tmp_path, random.Random(5))
    TaskStoreCache.close_all()


@pytest.mark.parametrize("seed", range(6))
def test_a_standby_that_follows_some_commits_and_is_promoted_equals_the_lost_store(tmp_path, seed):
    life = Life(tmp_path, random.Random(seed))
    followed = 0
    for _ in range(5):
        life.run(life.rng.randrange(1, 5))
        if life.rng.random() < 0.3:
            life.publish()
        if life.rng.random() < 0.7:
            life.follow()
            followed = life.epoch
    TaskStoreCache.close_all()
    found, source = life.promoted()
    assert found == life.contents[life.epoch]
    assert source.startswith(f"standby of 1.{followed} " if followed else ("snapshot", "changelog"))
    assert sorted(entry.name for entry in life.task.iterdir()) == [".standby.lock", "instance-1"]


@pytest.mark.parametrize("seed", range(12))
def test_what_a_task_has_left_follows_as_a_standby_without_what_was_not_committed(tmp_path, seed):
    """It is used unless the task ran further epochs before it had heard of the commit with which it left: nothing leads
    back to that commit then."""
    life = Life(tmp_path, random.Random(seed))
    life.run(life.rng.randrange(4))
    if life.rng.random() < 0.3:
        life.publish()
    has_heard, ahead = seed % 2 == 0, (0, 0, 1, 1, 3, 3)[seed % 6]
    instance, left_at = life.leave(has_heard=has_heard, ahead=ahead), life.epoch
    follows = life.rng.random() < 0.7
    for _ in range(1 + life.rng.randrange(3)):
        life.run(life.rng.randrange(3))
        if follows:
            life.follow()
    TaskStoreCache.close_all()
    found, source = life.promoted(left=None if follows else life.left)
    assert found == life.contents[life.epoch]
    is_used = has_heard or not ahead
    assert instance.exists() == (not is_used)
    if is_used and not follows:
        assert source.startswith(f"standby of 1.{left_at} ")


def test_what_a_task_has_left_loads_only_what_it_lacks(life):
    life.run(6)
    instance = life.leave(has_heard=False)
    assert life.follow() == 0
    life.run(1)
    assert 0 < life.follow() < 60
    assert not instance.exists()


def test_a_restore_takes_what_the_task_has_left_and_not_a_standby_of_before_it_was_there(life):
    life.task = life.store.folder.parent
    life.run(3)
    life.follow()
    life.leave()
    TaskStoreCache.close_all()
    found, source = life.promoted(left=life.left)
    assert found == life.contents[4]
    assert source.startswith("standby of 1.4 ")


def test_with_a_standby_there_what_a_task_has_left_is_of_no_use(life):
    life.run(3)
    instance = life.leave()
    left, life.left = life.left, None
    assert life.follow() > 0
    life.left = left
    life.run(1)
    life.follow()
    found, _ = life.promoted()
    assert found == life.contents[life.epoch]
    assert instance.exists()


@pytest.mark.parametrize("damage", ["cut", "gone", "in doubt", "a newer driver's"])
def test_what_a_task_has_left_is_not_used_unless_it_can_be_trusted(life, damage):
    life.run(3)
    instance = life.leave()
    if damage == "cut":
        (instance / "data.mdb").write_bytes((instance / "data.mdb").read_bytes()[:4096])
    elif damage == "gone":
        shutil.rmtree(instance)
    elif damage == "in doubt":
        put_in_doubt(instance, Doubt(task=TASK, store="totals", difference="", found_at_s=0.0, found_by="a test"))
    else:
        with closing(TaskStore.open(instance, TASK, [])) as store:
            store.settle(generation=2, expected=life.left.state, committed=life.left.state)
    assert life.follow() > 0
    found, source = life.promoted()
    assert found == life.contents[life.epoch]
    assert source.startswith("standby of 1.4 ")
    assert instance.exists() == (damage != "gone")


def test_what_was_in_memory_is_a_standby_on_the_disk(life):
    life.run(3)
    instance = life.leave()
    place(instance, in_memory=True)
    memory = (instance / "data.mdb").resolve()
    assert life.follow() == 0
    assert not memory.exists()
    assert not (life.task / ".standby" / "data.mdb").is_symlink()
    assert life.promoted()[0] == life.contents[life.epoch]


def test_it_loads_only_what_it_lacks(life):
    life.run(6)
    first = life.follow()
    life.run(1)
    assert 0 < life.follow() < first
    assert life.follow() == 0


DIES = """
import os, pickle, sys
from pathlib import Path
from weir.state.changelog.standby import follow
from weir.state.engine.standby import Standby
from weir.state.engine.task_store import TaskStore

given, owner, name, when = pickle.loads(Path(sys.argv[1]).read_bytes())
owner = {"Standby": Standby, "TaskStore": TaskStore}[owner]
original = getattr(owner, name)


def last(*arguments, **options):
    if when == "after":
        original(*arguments, **options)
    os._exit(9)


setattr(owner, name, last)
follow(**given)
"""
STEPS = [("TaskStore", "_stand_at"), ("Standby", "built"), ("TaskStore", "close")]


@pytest.mark.faults
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "step"), STEPS)
def test_killed_at_each_step_it_goes_on_or_begins_anew(life, owner, step, when, is_first):
    life.run(4)
    if not is_first:
        life.follow()
        life.run(3)
    TaskStoreCache.close_all()
    given = life.folder / "given"
    given.write_bytes(pickle.dumps((life.arguments(1), owner, step, when)))
    done = subprocess.run([sys.executable, "-c", DIES, str(given)], check=False)
    assert done.returncode == (0 if (step, is_first) == ("built", False) else 9)
    if life.rng.random() < 0.5:
        life.follow()
    found, _ = life.promoted()
    assert found == life.contents[life.epoch]


@pytest.mark.faults
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("owner", "step"), [("TaskStore", "settle"), ("Standby", "_recycled"), ("TaskStore", "_stand_at")]
)
def test_killed_at_each_step_what_a_task_has_left_is_where_it_was_or_a_standby(life, owner, step, when):
    life.run(3)
    instance = life.leave(ahead=1)
    life.run(2)
    TaskStoreCache.close_all()
    given = life.folder / "given"
    given.write_bytes(pickle.dumps((life.arguments(1), owner, step, when)))
    done = subprocess.run([sys.executable, "-c", DIES, str(given)], check=False)
    assert done.returncode == 9
    is_standby = (step, when) in {("_recycled", "after"), ("_stand_at", "before"), ("_stand_at", "after")}
    assert (instance.exists(), (life.task / ".standby").exists()) == (not is_standby, is_standby)
    if life.rng.random() < 0.5:
        life.follow()
    found, _ = life.promoted()
    assert found == life.contents[life.epoch]


def test_queries_read_it_at_its_commit_while_it_follows_and_keep_it_from_nothing(life):
    """Whoever follows is waited for; a snapshot that is being read stays what it was."""
    with reading_standby(life.task, IsolationLevel.READ_COMMITTED) as view:
        assert view is None
    life.run(3)
    follow(**life.arguments(1))
    with reading_standby(life.task, IsolationLevel.READ_COMMITTED) as view:
        before = list(view.scan(TOTALS.name))
        life.run(2)
        follow(**life.arguments(1))
        assert list(view.scan(TOTALS.name)) == before
        assert view.base == StateId(1, 3)
    with reading_standby(life.task, IsolationLevel.READ_COMMITTED) as view:
        assert view.base == StateId(1, 5)
        assert list(view.scan(TOTALS.name)) != before
    with (
        standby_of(life.task) as standby,
        standby.following(),
        reading_standby(life.task, IsolationLevel.READ_COMMITTED, wait_s=0.1) as view,
    ):
        assert view is None
    (life.task / ".standby" / "follows").touch()  # of a process that died at it
    with reading_standby(life.task, IsolationLevel.READ_COMMITTED) as view:
        assert view is None


def test_one_of_another_generation_is_not_used(life):
    life.run(3)
    life.follow(generation=1)
    found, source = life.promoted(generation=2)
    assert (found, source) == (life.contents[3], "changelog")
    assert life.follow(generation=2) > 0, "it is built anew"


@pytest.mark.parametrize("seed", range(6))
def test_the_generation_after_goes_on_with_it_wherever_the_other_one_has_stopped(tmp_path, seed):
    life = Life(tmp_path, random.Random(seed))
    life.run(5)
    anew = life.follow()
    if life.rng.random() < 0.5:
        life.run(1)
        life.follow()
    life.run(life.rng.randrange(2))
    TaskStoreCache.close_all()
    assert life.follow(generation=2, anew=True, before=1) < anew
    found, source = life.promoted(generation=2)
    assert (found, source) == (life.contents[life.epoch], f"standby of 1.{life.epoch} and the changelog since")


@pytest.mark.parametrize("seed", range(6))
def test_a_restore_of_the_generation_after_takes_it_wherever_the_other_one_has_stopped(tmp_path, seed):
    life = Life(tmp_path, random.Random(seed))
    life.run(5)
    life.follow()
    life.run(life.rng.randrange(3))
    TaskStoreCache.close_all()
    found, source = life.promoted(generation=2, before=1)
    assert (found, source) == (life.contents[life.epoch], "standby of 1.5 and the changelog since")


@pytest.mark.parametrize(
    "why", ["nothing goes on", "a generation between", "restored since", "another log", "never finished"]
)
def test_the_generation_after_builds_one_anew_that_may_not_belong_to_its_task(life, why):
    life.run(3)
    anew = life.follow()
    others: dict[str, Any] = {"generation": 2, "anew": True, "before": 1}
    if why == "nothing goes on":
        others["before"] = None
    elif why == "a generation between":
        others["before"] = 3
    elif why == "restored since":
        others["commit"] = replace(life.commit, instance="two")
    elif why == "another log":
        with standby_of(life.task) as standby:
            standby.note(replace(reached_by(life.task), at_ms=5))
    else:
        (life.task / ".standby" / "reached.json").unlink()
    TaskStoreCache.close_all()
    assert life.follow(**others) >= anew
    assert life.promoted(generation=2)[0] == life.contents[3]


def test_what_has_been_an_instance_since_says_nothing_of_a_commit_before(life):
    life.run(3)
    life.follow()
    life.promoted()
    assert not (life.task / "instance-1" / "reached.json").exists()


def test_one_that_lacks_forgotten_deletions_is_not_used_but_built_anew(life):
    life.run(3)
    life.follow()
    life.run(3)
    table = DeltaTable(life.app / changelog_spec(TOTALS).name)
    table.alter.set_table_properties({TOMBSTONE_HORIZON: "4"}, raise_if_not_exists=False)
    found, source = life.promoted()
    assert (found, source) == (life.contents[6], "changelog")


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_one_is_not_used(life, damage):
    life.run(3)
    life.follow()
    data = life.task / ".standby" / "data.mdb"
    if damage == "cut":
        data.write_bytes(data.read_bytes()[:4096])
    else:
        data.unlink()
    found, source = life.promoted()
    assert (found, source) == (life.contents[3], "changelog")


def test_whoever_hangs_at_it_holds_up_no_restore(life, monkeypatch):
    life.run(3)
    life.follow()
    monkeypatch.setattr(restore, "_STANDBY_WAIT_S", 0.1)
    with (life.task / ".standby.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StandbyError, match="another process is at the standby"):
            life.follow()
        found, source = life.promoted()
    assert (found, source) == (life.contents[3], "changelog")
    with standby_of(life.task) as standby:
        assert standby.opened(TASK, [], 1, StateId(1, 3)) is not None
