"""``weir verify``: stores that match their changelogs and the commit log, and the first difference if they do not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from threading import Event

import lmdb
import msgspec
import polars as pl
import pytest
from typer.testing import CliRunner

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, sales
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.operations import registry
from weir.pipelines.operations import verify as module
from weir.pipelines.operations.doubts import doubts
from weir.pipelines.operations.verify import verify_application
from weir.state.changelog.verify import StateDifferenceError
from weir.state.commit.protocol import newest_commit
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.databases import Databases
from weir.state.engine.doubts import clear_doubt
from weir.state.engine.instances import set_current
from weir.state.engine.task_store import TASK_STORE, TaskStore
from weir.state.stores.codec import KeyCodec, RowCodec
from weir.state.types import StateId

ROWS = 40
(SPEC,) = application().topology.sub_topologies[0].stores


class Shop(Place):
    """Two tasks of sales, five shops each."""

    def verify(self) -> list[int]:
        """Rows by task, all matching."""
        return [agreement.rows for agreement in verify_application(Settings(dir=self.folder), self.application)]

    @property
    def state_folder(self) -> Path:
        return self.folder / "state" / "sales"

    def differs(self) -> StateDifferenceError:
        with pytest.raises(StateDifferenceError) as caught:
            self.verify()
        assert caught.value.task == self.name_of("0_1")
        return caught.value

    def change(self, store: str, key: bytes, value: bytes | None) -> None:
        """Change a row as a faulty disk would; the row counts are not checked."""
        instance = self.state_of("0_1") / "first"
        with lmdb.open(str(instance), max_dbs=8, map_size=1 << 30) as raw, raw.begin(write=True) as txn:
            database = raw.open_db(store.encode(), txn=txn)
            assert txn.delete(key, db=database) if value is None else txn.put(key, value, db=database)


@pytest.fixture
def shop(tmp_path, monkeypatch):
    topics = Topics({("sales", partition): sales(ROWS, partition) for partition in (0, 1)})
    place = Shop(application(), topics, tmp_path)
    place.run()
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(Databases, "check", lambda databases: None)  # row counts are tested with the engine
    yield place
    TaskStoreCache.close_all()


def key(shop: str) -> bytes:
    return KeyCodec(SPEC.key, SPEC.kind).encode(pl.DataFrame({"shop": [shop]}))[0]


def row() -> bytes:
    """A row that no sale produced."""
    nothing = pl.DataFrame({name: [None] for name in SPEC.value}, schema=SPEC.value)
    return RowCodec(SPEC.value).encode(nothing.with_columns(_ts=pl.lit(5)))[0]


def test_stores_match_after_runs_and_verifying_leaves_no_files(shop):
    assert shop.verify() == [5, 5]
    shop.topics.rows["sales", 1] += sales(30, 1)
    shop.run()
    assert shop.verify() == [5, 5]
    assert sorted(path.name for path in shop.state_of("0_1").iterdir()) == ["CURRENT", "first"]


def test_the_command_prints_one_line_per_task_and_exits_with_1_at_a_difference(shop, monkeypatch):
    monkeypatch.setattr(registry, "registered_application", lambda settings, name: shop.application)
    good = CliRunner().invoke(app, ["verify", "sales", "--dir", str(shop.folder)])
    assert good.exit_code == 0
    assert f"task 0_0 ({shop.name_of('0_0')}) agrees at 1.1: 5 rows" in " ".join(good.stdout.split())
    (first, _) = json.loads(CliRunner().invoke(app, ["verify", "sales", "--dir", str(shop.folder), "--json"]).stdout)[
        "tasks"
    ]
    assert (first["task"], first["name"]) == ("0_0", shop.name_of("0_0"))
    shop.change("sums", key("shop-3"), None)
    bad = CliRunner().invoke(app, ["verify", "sales", "--dir", str(shop.folder), "--json"])
    assert bad.exit_code == 1
    assert f"task 0_1 ({shop.name_of('0_1')}), store 'sums', key shop=shop-3: wanted" in " ".join(bad.stderr.split())
    assert "`weir restore sales 0_1 --from-changelog --dir " in " ".join(bad.stderr.split())


def test_the_key_of_a_difference_is_named_without_commands_to_the_terminal(shop, monkeypatch):
    monkeypatch.setattr(registry, "registered_application", lambda settings, name: shop.application)
    shop.change("sums", key("shop\u00a0\x1b[2J"), row())
    bad = CliRunner().invoke(app, ["verify", "sales", "--dir", str(shop.folder)])
    assert "key shop=shop\u00a0\\x1b[2J: wanted" in bad.stderr


def test_files_of_a_killed_verification_are_removed_by_the_next(shop):
    left = shop.state_of("0_1") / ".copy-5000001-x"
    left.mkdir()
    (left / "data.mdb").touch()
    shop.verify()
    assert not left.exists()


@pytest.mark.slow
def test_a_task_is_compared_at_its_last_commit_while_it_continues(shop, monkeypatch):
    """The store holds uncommitted epochs, and the changelog has rows that the store has not settled yet."""
    shop.topics.rows["sales", 1] += sales(400, 1)
    shop.max_records = 30
    driver, looks = shop.driver(), []
    run_epoch = driver._coordinator.run_epoch

    def look_after_the_epoch(*arguments, **shares):
        result = run_epoch(*arguments, **shares)
        looks.append((shop.verify(), driver._coordinator.has_uncommitted))
        return result

    monkeypatch.setattr(driver._coordinator, "run_epoch", look_after_the_epoch)
    driver.run(Event(), until_caught_up=True)
    assert len(looks) > 5
    assert sum(uncommitted for _, uncommitted in looks) > 3
    assert all(rows == [5, 5] for rows, _ in looks)


def test_a_restored_task_matches_once_a_commit_names_its_instance(shop, monkeypatch):
    """It is idle: its store has not heard of that commit."""
    driver, looks = shop.driver(), []
    commit = driver._coordinator.commit

    def look_after_the_commit(*arguments, **named):
        commit(*arguments, **named)
        looks.append((len(shop.restores.done), shop.verify()))

    monkeypatch.setattr(driver._coordinator, "commit", look_after_the_commit)
    shop.desk.ask("restore", task="0_1")
    driver.run(Event(), until_caught_up=True)
    assert looks
    assert set(map(str, looks)) == {"(1, [5, 5])"}


def test_a_changed_row_is_named_with_both_its_values(shop):
    shop.change("sums", key("shop-3"), row())
    found = shop.differs()
    assert (found.store, found.key) == ("sums", "key shop=shop-3")
    assert "=8" in found.wanted
    assert "=8" not in found.found
    assert "`weir restore sales 0_1 --from-changelog`" in str(found)


def test_a_difference_is_kept_though_the_control_database_does_not_answer(shop):
    shop.change("sums", key("shop-3"), row())
    (shop.folder / "control.sqlite").mkdir()
    assert str(shop.differs()) == doubts(Settings(dir=shop.folder), "sales")[0].difference


def test_a_missing_row_is_named(shop):
    shop.change("sums", key("shop-3"), None)
    found = shop.differs()
    assert (found.key, found.found) == ("key shop=shop-3", "nothing")


@pytest.mark.parametrize("name", ["shop-2", "zzz"])
def test_an_extra_row_is_named(shop, name):
    shop.change("sums", key(name), row())
    found = shop.differs()
    assert (found.key, found.wanted) == (f"key shop={name}", "nothing")


def test_bytes_that_are_not_a_row_are_shown(shop):
    shop.change("sums", key("shop-3"), b"\x00")
    assert "bytes that are not a row" in shop.differs().found


def test_a_position_missing_from_the_commit_log_is_named(shop):
    shop.change(TASK_STORE, b"positions", msgspec.msgpack.encode({"sales": {1: 39}}))
    found = shop.differs()
    assert (found.key, found.wanted, found.found) == ("entry 'positions/sales/1'", "40", "39")
    clear_doubt(shop.state_of("0_1") / "first")
    shop.change(TASK_STORE, b"positions", b"\xc1")
    assert shop.differs().store == TASK_STORE


def test_a_state_missing_from_the_commit_log_is_named(shop):
    store = TaskStore.open(shop.state_of("0_1") / "first", "0_1", ["sums"])
    with store.session() as session:
        store.apply(
            session,
            state=StateId(1, 99),
            expected=store.base,
            generation=1,
            plan_hash="",
            make_receipt=lambda uncommitted: b"",
        )
    store.settle(generation=1, expected=StateId(1, 99), committed=StateId(1, 99))
    store.close()
    found = shop.differs()
    assert (found.key, found.found) == ("state id", "1.99")


def test_an_instance_that_the_commit_log_does_not_name_is_named(shop):
    task = shop.state_of("0_1")
    shutil.copytree(task / "first", task / "other")
    set_current(task, "other")
    found = shop.differs()
    assert (found.key, found.found) == ("instance", "other")
    (task / "CURRENT").unlink()
    assert shop.differs().found == "nothing"


def test_state_that_cannot_be_read_is_a_difference(shop):
    instance = shop.state_of("0_1") / "first"
    with (instance / "data.mdb").open("r+b") as file:
        file.write(bytes(8192))
    assert "LMDB" in shop.differs().found


@pytest.mark.slow
def test_a_changelog_behind_the_commit_log_is_distinguished_from_a_wrong_store(shop, monkeypatch):
    class Killed(BaseException):
        pass

    def die(step):
        if step == "pivot appended":
            raise Killed

    shop.topics.rows["sales", 1] += sales(30, 1)
    with pytest.raises(Killed):
        shop.run(die)
    TaskStoreCache.close_all()
    record = newest_commit(shop.warehouse, "sales")
    assert shop.verify() == [5, 5], "the store has not heard of that commit"
    store = TaskStore.open(shop.state_of("0_1") / "first", "0_1", ["sums"])
    state = record.tasks[shop.name_of("0_1")].state
    store.settle(generation=2, expected=state, committed=state)
    store.close()
    found = shop.differs()
    assert (found.store, found.key) == ("sums", "changelog")
    assert "next start of the application repairs it" in found.found
