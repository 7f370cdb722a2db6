"""Stores in memory: what survives a killed process, what a restart of the machine takes, and how programs move their
stores into memory and out of it. PROTOCOL 39; ``tests/pipelines/spark/unlogged.py`` has the program and its model."""

from __future__ import annotations

import logging
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from tests.pipelines.spark.unlogged import Site, killed_at, lose, more, under
from tests.state.engine.own_store import InMemory
from weir import (
    Application,
    BufferConfig,
    Int64,
    KeyValueStore,
    Materialized,
    Processor,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
    TopologyError,
)
from weir.pipelines.backfill.shadow import _remove as _discard
from weir.pipelines.operations.reset import _remove as _reset
from weir.state.commit.protocol import newest_commit
from weir.state.engine import in_memory
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.environment import DATA
from weir.state.engine.in_memory import free, is_in_memory, place
from weir.state.engine.instances import current_instance, instances
from weir.state.engine.quarantine import quarantined
from weir.state.errors import DiskFullError

ROWS = 60
LOGGING = [True, False, None]
"""With a changelog, without one, and without one but computed again."""


@pytest.fixture
def site_of(tmp_path):
    """Makes a site in memory, and gives its memory back."""
    sites = []

    def make(rows, **options) -> Site:
        sites.append(Site.of(tmp_path, rows, **{"in_memory": True, **options}))
        return sites[-1]

    yield make
    TaskStoreCache.close_all()
    for site in sites:
        if site.state_folder.exists():
            free(site.state_folder)


def memory(site: Site) -> Path:
    return in_memory._memory_of(site.state_folder)


def restart(site: Site) -> None:
    """The machine or its container has restarted: what was in memory is gone, what was on disk is there."""
    TaskStoreCache.close_all()
    shutil.rmtree(memory(site))


def are_in_memory(site: Site) -> set[bool]:
    return {is_in_memory(folder) for folder in instances(site.state_folder)}


@pytest.mark.parametrize("step", ["state written", "undo dropped"])
@pytest.mark.parametrize("logged", LOGGING)
def test_stores_in_memory_survive_a_killed_process(site_of, logged, step, caplog):
    site = site_of(2 * ROWS, logging=logged)
    assert killed_at(site, logged, step, 3, in_memory=True)
    with caplog.at_level(logging.WARNING):
        site.run()
    assert not caplog.records
    assert site.held == site.expected()
    assert are_in_memory(site) == {True}
    assert all((folder / DATA).resolve().is_relative_to("/dev/shm") for folder in instances(site.state_folder))


@pytest.mark.parametrize("logged", LOGGING)
def test_a_machine_that_dies_with_the_process_loses_what_only_memory_had(site_of, logged):
    site = site_of(4 * ROWS, logging=logged)
    assert killed_at(site, logged, "pivot appended", 4, in_memory=True)
    tasks = newest_commit(site.warehouse, "visits").tasks
    committed = {number: tasks[f"visits_{number}"].positions["visits"][number] for number in (0, 1)}
    restart(site)
    site.run()
    more(site)
    site.run()
    lost = {True: [], False: ["sums", "minutes", "newest", "last"], None: ["last"]}[logged]
    assert site.held == site.expected(since=committed, of=lost)
    assert are_in_memory(site) == {True}
    assert not list(site.state_folder.glob("*/.rebuilding"))
    assert len(list(memory(site).iterdir())) == 2


@pytest.mark.parametrize("logged", LOGGING)
def test_a_clean_stop_does_not_save_what_only_memory_had(site_of, logged):
    site = site_of(ROWS, logging=logged)
    site.run()
    restart(site)
    more(site)
    site.run()
    lost = {True: [], False: ["sums", "minutes", "newest", "last"], None: ["last"]}[logged]
    assert site.held == site.expected(since={0: ROWS, 1: ROWS}, of=lost)
    reasons = {(folder.path / "reason.txt").read_text() for folder in quarantined(site.state_folder)}
    assert reasons == {"its stores were in memory, which a restart of the machine or its container has emptied\n"}


@pytest.mark.parametrize("logged", LOGGING)
def test_stores_go_into_memory_and_out_of_it_with_all_their_rows(site_of, logged, caplog):
    site = site_of(ROWS, logging=logged, in_memory=False)
    with caplog.at_level(logging.WARNING):
        for into in (True, False, True):
            other = under(site, logging=logged, in_memory=into)
            other.run()
            assert are_in_memory(other) == {into}
            assert len(list(memory(other).iterdir())) == 2 * into
            more(other)
            other.die()
        other.run()
    assert other.held == other.expected()
    assert not caplog.records  # nothing was restored


def test_a_kill_before_the_move_leaves_the_rows_where_they_were(site_of):
    site = site_of(ROWS, logging=False, in_memory=False)
    site.run()
    assert not killed_at(site, False, "no such step", 1)
    folder = current_instance(site.state_of("0_1"))
    left = memory(site) / "0123456789ab-1000000000"
    left.mkdir(parents=True)
    (left / DATA).write_bytes(b"half")
    (folder / in_memory._MOVING).symlink_to(left / DATA)
    other = under(site, logging=False, in_memory=True)
    more(other)
    other.run()
    assert other.held == other.expected()
    assert len(list(memory(other).iterdir())) == 2
    assert not list(site.state_folder.glob(f"*/*/{in_memory._MOVING}"))


def test_what_is_quarantined_or_removed_gives_its_memory_back(site_of):
    site = site_of(ROWS, logging=True)
    assert killed_at(site, True, "pivot appended", 3, in_memory=True)  # the process that made the files is gone
    site.desk.ask("restore", task="0_0")
    site.run()
    assert len(list(memory(site).iterdir())) == 2
    lose(site, "0_1")
    site.run()
    assert site.held == site.expected()
    used = {(folder / DATA).resolve().parent for folder in instances(site.state_folder)}
    TaskStoreCache.close_all()
    assert used <= set(memory(site).iterdir())
    where = memory(site)
    free(site.state_folder)
    assert not {path for path in used if path.exists()}
    site.run()
    assert site.held == site.expected()
    assert where == memory(site)


@pytest.mark.parametrize("remove", [_reset, lambda folder, scratch: _discard(folder)])
def test_a_reset_and_the_removal_of_a_backfill_give_their_memory_back(site_of, tmp_path, remove):
    site = site_of(ROWS, logging=True)
    site.run()
    TaskStoreCache.close_all()
    used = memory(site)
    assert used.exists()
    remove(site.state_folder, tmp_path / "scratch")
    assert not used.exists()
    assert not site.state_folder.exists()


def test_a_link_that_somebody_else_has_made_is_left_alone(site_of, tmp_path):
    site = site_of(ROWS, logging=False, in_memory=False)
    site.run()
    TaskStoreCache.close_all()
    data, elsewhere = current_instance(site.state_of("0_1")) / DATA, tmp_path / "other disk" / DATA
    elsewhere.parent.mkdir()
    data.replace(elsewhere)
    data.symlink_to(elsewhere)
    site.run()
    assert site.held == site.expected()
    TaskStoreCache.close_all()
    free(site.state_folder)
    assert elsewhere.exists()


def test_memory_that_is_too_small_is_refused_and_nothing_has_changed(site_of, monkeypatch):
    site = site_of(ROWS, logging=False, in_memory=False)
    site.run()
    TaskStoreCache.close_all()
    folder = current_instance(site.state_of("0_0"))
    with monkeypatch.context() as full:
        full.setattr(in_memory, "FREE_DISK_RESERVE_BYTES", 1 << 60)
        with pytest.raises(DiskFullError, match="/dev/shm/"):
            place(folder, in_memory=True)
    assert not list(memory(site).iterdir())
    site.run()
    assert site.held == site.expected()
    other = under(site, logging=False, in_memory=True)
    other.run()
    assert other.held == other.expected()


class Keeping(Processor[str, int, None, None]):
    def process(self, record):
        pass


def test_stores_that_are_kept_together_are_all_in_memory_or_none():
    def application(together: bool, in_memory: bool = True):
        builder = StreamsBuilder()
        numbers = builder.stream("in", key=String("user"), value=Int64("n"))
        numbers.group_by_key().count(Materialized("counts", in_memory=in_memory))
        numbers.process(Keeping, stores=[KeyValueStore("kept", str, int, in_memory=together)])
        return Application("app", builder)

    with pytest.raises(
        TopologyError, match="store 'counts' is in memory, and 'kept', which is kept together"
    ) as refused:
        application(False)
    assert "add in_memory=True to 'kept', or leave it out" in str(refused.value)
    application(True)
    application(False, False)


def test_buffers_and_the_stores_behind_a_repartition_are_not_asked():
    builder = StreamsBuilder()
    numbers = builder.stream("in", key=String("user"), value=Int64("n"))
    windows = numbers.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1)))
    windows.count(Materialized("counts", in_memory=True)).suppress(
        Suppressed.until_time_limit(timedelta(minutes=1), BufferConfig.unbounded())
    ).to_delta("out")
    numbers.group_by("n").count("others")
    topology = Application("app", builder).topology
    assert [each.is_in_memory for each in topology.sub_topologies] == [True, False]


def test_a_store_of_ones_own_keeps_its_rows_itself():
    with pytest.raises(TopologyError, match="leave in_memory=True out, or let Weir keep the rows"):
        Materialized("kept", InMemory, in_memory=True)
    with pytest.raises(TopologyError, match="in_memory is 'yes'; it must be True or False"):
        Materialized("kept", in_memory="yes")

    builder = StreamsBuilder()
    numbers = builder.stream("in", key=String("user"), value=Int64("n")).group_by_key()
    numbers.count(Materialized("counts", in_memory=True))
    numbers.count(Materialized("own", InMemory))
    with pytest.raises(TopologyError, match="leave in_memory=True out, or give the other no store of your own"):
        Application("app", builder)
