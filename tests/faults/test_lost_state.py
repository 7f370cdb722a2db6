"""A task whose local state is lost or in doubt: quarantine, then a restore from its changelog, while others continue.

Every kind of damage is done to one of two tasks after a driver has died. Files that a restart of the machine, another
machine or a broken disk would leave are made by hand; ``tests/integration/test_run.py`` does it to real workers.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Event

import lmdb
import msgspec
import pytest

from tests.pipelines.spark.inline import InlineRestores, Place, Topics
from tests.pipelines.spark.sales import application, expected, sales, totals
from weir.infra.kafka.admin import BrokerUnreachableError
from weir.pipelines.spark import driver as module
from weir.pipelines.spark.errors import RestoreFailedError
from weir.pipelines.tasks.epoch import POSITIONS_KEY
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import TaskCommit
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.environment import PAGE_BYTES
from weir.state.engine.task_store import TASK_STORE, TaskStore
from weir.state.types import StateId

pytestmark = pytest.mark.faults

ROWS = 60
VICTIM, OTHER = "0_1", "0_0"


class Shop(Place):
    """Two tasks of sales; notes what the status says, and restores when told to."""

    def __init__(self, folder: Path) -> None:
        topics = Topics({("sales", partition): sales(ROWS, partition) for partition in (0, 1)})
        super().__init__(application(), topics, folder, max_records=30)
        self.statuses: dict[str, set[tuple[str, str]]] = {VICTIM: set(), OTHER: set()}
        self.other_offsets_while_restoring: list[int] = []
        self.desk.report = self._note  # type: ignore[method-assign]

    @property
    def committed(self) -> TaskCommit:
        """The victim's part of the newest commit."""
        return newest_commit(self.warehouse, "sales").tasks[self.name_of(VICTIM)]

    @property
    def instance(self) -> Path:
        """The victim's folder."""
        return self.state_of(VICTIM) / self.committed.instance

    def run_and_die(self) -> None:
        """A driver that reads everything and dies without closing its stores."""
        driver = self.driver()
        driver._finish = lambda reason, stop: None
        driver.run(Event(), until_caught_up=True)
        TaskStoreCache.close_all()

    def run_with_a_restore_that_waits_for_the_others(self, monkeypatch) -> None:
        """More input, and a driver that finishes the restore once the other task has read all of its input."""
        for partition in (0, 1):
            self.topics.rows["sales", partition] += sales(ROWS, partition)
        driver = self.driver()
        finished, tasks = InlineRestores.finished, driver._coordinator.tasks

        def when_the_other_is_done(restores):
            other = next(task for task in tasks.values() if str(task.id) == OTHER)
            if restores.waiting:
                self.other_offsets_while_restoring.append(other.positions["sales"][0])
                if other.positions["sales"][0] < 2 * ROWS:
                    return []
            return finished(restores)

        monkeypatch.setattr(InlineRestores, "finished", when_the_other_is_done)
        driver.run(Event(), until_caught_up=True)

    def _note(self, progress, tasks, ends) -> None:
        for task in tasks:
            self.statuses[str(task.id)].add((task.state.value, task.reason))


@pytest.fixture(scope="module")
def left_by_the_dead(tmp_path_factory):
    place = Shop(tmp_path_factory.mktemp("dead"))
    place.run_and_die()
    return place


@pytest.fixture
def shop(tmp_path, monkeypatch, left_by_the_dead):
    monkeypatch.setattr(module, "REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(module, "REPORT_SHARE", 1_000.0)
    shutil.copytree(left_by_the_dead.folder, tmp_path / "shop")
    place = Shop(tmp_path / "shop")
    yield place
    TaskStoreCache.close_all()


def change_identity(folder: Path, **changes: object) -> None:
    path = folder / "instance.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def used_bytes(folder: Path) -> bytes:
    """The data file up to its last page with content."""
    return (folder / "data.mdb").read_bytes().rstrip(b"\x00")


def flip(folder: Path, offset: int, count: int = 16) -> None:
    with (folder / "data.mdb").open("r+b") as file:
        file.seek(offset)
        bytes_there = file.read(count)
        file.seek(offset)
        file.write(bytes(byte ^ 0xFF for byte in bytes_there))


def flip_headers_of_pages_with(shop: Shop, content: bytes) -> None:
    data, found = used_bytes(shop.instance), 0
    for page in range(2, len(data) // PAGE_BYTES + 1):
        if content in data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]:
            flip(shop.instance, page * PAGE_BYTES)
            found += 1
    assert found


def flip_meta_record(shop: Shop) -> None:
    data, at = used_bytes(shop.instance), -1
    while (at := data.find(b"committed_rows", at + 1)) >= 0:
        flip(shop.instance, at)


def put(shop: Shop, key: bytes, value: bytes, *, state: StateId) -> None:
    """Change a row of the task's own store behind its back; afterwards it is at ``state``, as committed."""
    store = TaskStore.open(shop.instance, VICTIM, ["sums"])
    store.settle(generation=1, expected=shop.committed.state, committed=shop.committed.state)
    with store.session() as session:
        session.put_many(TASK_STORE, [key], [value])
        store.apply(
            session,
            state=state,
            expected=shop.committed.state,
            generation=1,
            plan_hash="",
            make_receipt=lambda uncommitted: b"",
        )
    store.settle(generation=1, expected=state, committed=state)
    store.close()


def lose_rows(shop: Shop) -> None:
    with lmdb.open(str(shop.instance), max_dbs=8, map_size=1 << 30) as raw, raw.begin(write=True) as txn:
        assert txn.delete(b"\x02shop-1", db=raw.open_db(b"sums", txn=txn))


DAMAGES: dict[str, tuple[Callable[[Shop], object], str]] = {
    "the folder is gone": (lambda shop: shutil.rmtree(shop.instance), "the folder is missing"),
    "the data file is gone": (lambda shop: (shop.instance / "data.mdb").unlink(), "holds no data"),
    "the data file is cut short": (
        lambda shop: os.truncate(shop.instance / "data.mdb", 3 * PAGE_BYTES),
        "were written",
    ),
    "the data file is empty": (lambda shop: os.truncate(shop.instance / "data.mdb", 0), "no LMDB header"),
    "bytes flipped in the file's header": (
        lambda shop: [flip(shop.instance, page * PAGE_BYTES, 64) for page in (0, 1)],
        "no LMDB header",
    ),
    "bytes flipped in the meta record": (flip_meta_record, "meta record is missing or damaged"),
    "bytes flipped in pages of rows": (lambda shop: flip_headers_of_pages_with(shop, b"shop-1"), "LMDB: "),
    "bytes flipped in the row of positions": (
        lambda shop: put(shop, POSITIONS_KEY, b"\xc1garbage", state=shop.committed.state),
        "cannot be read",
    ),
    "rows are gone": (lose_rows, "holds 4 rows, but 5 were written"),
    "another format version": (lambda shop: change_identity(shop.instance, format_version=0), "format version 0"),
    "no identity": (lambda shop: (shop.instance / "instance.json").unlink(), "instance.json cannot be read"),
    "the machine was restarted": (lambda shop: change_identity(shop.instance, boot_id="before"), "has restarted"),
    "another device": (lambda shop: change_identity(shop.instance, device=1), "another device"),
    "another machine's folder": (
        lambda shop: change_identity(shop.instance, boot_id="theirs", device=1),
        "has restarted",
    ),
    "a position beyond the log": (
        lambda shop: put(
            shop, POSITIONS_KEY, msgspec.msgpack.encode({"sales": {1: 10_000}}), state=shop.committed.state
        ),
        "holds position 10000 of sales-1, but the plan continues from 60",
    ),
    "a state beyond the log": (
        lambda shop: put(shop, b"extra", b"", state=StateId(1, 999)),
        "holds state 1.999 with base 1.999",
    ),
    "three processes died over it": (
        lambda shop: [(shop.instance / f"unproven.{5_000_001 + n}").touch() for n in range(3)],
        "3 processes died",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_only_the_damaged_task_goes_to_quarantine_and_is_restored(shop, monkeypatch, caplog, damage):
    injure, reason = DAMAGES[damage]
    instance = shop.instance
    injure(shop)
    before = {path.name: path.stat().st_size for path in instance.iterdir()} if instance.exists() else None
    with caplog.at_level(logging.INFO, "weir.driver"):
        shop.run_with_a_restore_that_waits_for_the_others(monkeypatch)
    assert [str(done.request.task) for done in shop.restores.done] == [VICTIM]
    assert reason in shop.restores.done[0].request.reason
    assert shop.other_offsets_while_restoring[-1] == 2 * ROWS > shop.other_offsets_while_restoring[0]
    quarantine = shop.state_of(VICTIM) / "quarantine"
    if before is None:
        assert not quarantine.exists()
    else:
        (kept,) = quarantine.iterdir()
        assert reason in (kept / "reason.txt").read_text()
        assert before.items() <= {path.name: path.stat().st_size for path in kept.iterdir()}.items()
    assert not (shop.state_of(OTHER) / "quarantine").exists()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith(f"task {VICTIM}: ")
    assert reason in warning
    assert any(state == "restoring" and reason in why for state, why in shop.statuses[VICTIM])
    assert any(state == "running" and reason in why for state, why in shop.statuses[VICTIM]), (
        "the reason remains visible"
    )
    assert {why for _, why in shop.statuses[OTHER]} == {""}
    assert totals(shop) == expected(shop)
    assert shop.instance.name == shop.restores.done[0].request.instance, "the commit log names the new instance"


def test_a_restored_task_is_not_restored_again_at_the_next_start(shop):
    shutil.rmtree(shop.instance)
    shop.run()
    assert len(shop.restores.done) == 1
    shop.run()
    assert not shop.restores.done


def test_a_task_whose_restored_state_is_no_better_stops_the_run(shop, monkeypatch):
    """Its changelog does not agree with the commit log: restoring it forever would hide that."""
    shutil.rmtree(shop.instance)
    monkeypatch.setattr(
        "weir.pipelines.spark.restore_jobs.task_rows",
        lambda positions, clocks: [(POSITIONS_KEY, msgspec.msgpack.encode({"sales": {1: 7}}))],
    )
    shop.topics.rows["sales", 1] += sales(10, 1)
    with pytest.raises(RestoreFailedError, match=r"task 0_1 .*no better.*holds position 7 of sales-1"):
        shop.run()
    assert len(shop.restores.done) == 1


def test_timeouts_and_broker_errors_restore_nothing(shop, monkeypatch):
    """A reader that fails stops the run with everything committed; a run waits for brokers that are away."""
    monkeypatch.setattr(module, "BROKER_WAIT_S", 0.001)
    for partition in (0, 1):
        shop.topics.rows["sales", partition] += sales(ROWS, partition)
    end_offsets, calls = shop.topics.end_offsets, []

    def away_at_first(wanted):
        calls.append(wanted)
        if len(calls) < 4:
            raise BrokerUnreachableError("nowhere:1", "timed out")
        return end_offsets(wanted)

    reader, reads = shop.topics.reader, []

    def reader_that_times_out(topic, partition):
        made = reader(topic, partition)
        read = made.read

        def reading(*range, **bounds):
            reads.append(partition)
            if len(reads) == 3:
                raise TimeoutError("no record within 30 s")
            return read(*range, **bounds)

        made.read = reading
        return made

    monkeypatch.setattr(shop.topics, "end_offsets", away_at_first)
    monkeypatch.setattr(shop.topics, "reader", reader_that_times_out)
    with pytest.raises(Exception, match="no record within 30 s"):
        shop.run()
    restored = list(shop.restores.done)
    shop.run()
    assert len(calls) > 4
    assert not restored + shop.restores.done
    assert not list((shop.folder / "state").glob("*/quarantine"))
    assert totals(shop) == expected(shop)


SCAN = """
import sys
from pathlib import Path
from weir.state.engine.task_store import TaskStore
from weir.state.types import IsolationLevel
store = TaskStore.open(Path(sys.argv[1]), "0_0", ["a"])
with store.reader(IsolationLevel.READ_COMMITTED) as reader:
    sum(1 for row in reader.scan("a"))
"""


def test_pages_that_crash_the_process_are_found_by_its_deaths(tmp_path):
    """LMDB aborts on a page that is not what it should be; there is no error to catch."""
    store = TaskStore.create(tmp_path / "i", "0_0", ["a"])
    keys = [b"%08d" % n for n in range(2_000)]
    store.bulk_load({"a": [(keys, [b"x" * 50] * 2_000)]}, state=StateId(1, 1), generation=1)
    store.close()
    data = used_bytes(tmp_path / "i")
    page = data.index(b"00001000") // PAGE_BYTES
    with (tmp_path / "i" / "data.mdb").open("r+b") as file:
        file.seek(page * PAGE_BYTES + 10)
        file.write(b"\x10\x00")  # the page's flags: no longer a leaf
    ends = [
        subprocess.run([sys.executable, "-c", SCAN, str(tmp_path / "i")], capture_output=True, text=True)
        for _ in range(4)
    ]
    assert [end.returncode for end in ends] == [-6, -6, -6, 1], ends[0].stderr
    assert "3 processes died" in ends[3].stderr


def test_a_commit_interval_of_hours_does_not_lose_what_a_restore_found_uncommitted(shop, monkeypatch):
    """PROTOCOL 20: what a task had accepted is committed before it restores, since its files are in the warehouse."""
    shop.application = application(commit_interval=timedelta(hours=1))
    for partition in (0, 1):
        shop.topics.rows["sales", partition] += sales(ROWS, partition)
    driver = shop.driver()
    run_epoch, epochs = driver._coordinator.run_epoch, []

    def losing_the_folder_in_mid_run(*arguments, **shares):
        epochs.append(arguments)
        if len(epochs) == 2:
            shutil.rmtree(shop.instance)
        return run_epoch(*arguments, **shares)

    monkeypatch.setattr(driver._coordinator, "run_epoch", losing_the_folder_in_mid_run)
    driver.run(Event(), until_caught_up=True)
    assert shop.restores.done[0].request.commit.positions["sales"][1] > ROWS
    assert totals(shop) == expected(shop)
