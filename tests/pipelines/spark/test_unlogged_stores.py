"""Stores without changelogs: what survives, what begins empty, and how a program puts changelogs in and leaves them
out. PROTOCOL 37; ``tests/pipelines/spark/unlogged.py`` has the program, its model, and the process that dies."""

from __future__ import annotations

import logging

import pytest
from deltalake import DeltaTable

from tests.pipelines.backfill.inline import begun_whole, run_shadow
from tests.pipelines.spark.unlogged import STORES, Site, changes, killed_at, lose, more, under
from weir import Application, Int64, Mean, StreamsBuilder, String
from weir.infra.settings import Settings
from weir.pipelines.backfill.errors import UnloggedStoreError
from weir.pipelines.backfill.everything import swap_everything
from weir.pipelines.operations.aside import stores_of
from weir.pipelines.operations.verify import verify_application
from weir.pipelines.spark.errors import TopologyChangedError, UnloggedStoreLostError
from weir.pipelines.topology.changes import Fate
from weir.state.changelog.compaction import Compaction
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import UNLOGGED_FORMAT_VERSION
from weir.state.engine.cache import TaskStoreCache

ROWS = 60


@pytest.fixture(autouse=True)
def _closed():
    yield
    TaskStoreCache.close_all()


def changelogs(site: Site) -> set[str]:
    return {path.parent.name for path in (site.warehouse / "visits" / "_changelog").glob("*/_delta_log")}


def unlogged(site: Site) -> dict[str, set[str]]:
    return {name: set(task.unlogged) for name, task in newest_commit(site.warehouse, "visits").tasks.items()}


def compact(site: Site) -> None:
    compaction = Compaction(site.warehouse, "visits", is_whole=True)
    compaction.run(compaction.tables())


def test_a_store_without_a_changelog_goes_on_where_it_survives(tmp_path, caplog):
    site = Site.of(tmp_path, ROWS, logging=False)
    site.run()
    more(site)
    site.die()
    more(site)
    with caplog.at_level(logging.WARNING):
        site.run()
    assert site.held == site.expected()
    assert changelogs(site) == {"always"}
    assert not caplog.records
    assert {name for held in unlogged(site).values() for name in held} == set(STORES)
    assert newest_commit(site.warehouse, "visits").format_version == UNLOGGED_FORMAT_VERSION


@pytest.mark.parametrize("step", ["files written", "state written", "pivot appended", "undo dropped"])
def test_a_process_killed_at_any_step_leaves_what_an_undisturbed_run_leaves(tmp_path, step):
    site = Site.of(tmp_path, 2 * ROWS, logging=False)
    assert killed_at(site, False, step, 3)
    site.run()
    assert site.held == site.expected()


def test_a_lost_store_begins_empty_and_says_so_and_all_others_have_their_rows(tmp_path, caplog):
    site = Site.of(tmp_path, ROWS, logging=False)
    site.run()
    lose(site, "0_1")
    more(site)
    with caplog.at_level(logging.WARNING):
        site.run()
    assert site.held == site.expected(since={1: ROWS})
    warned = [record.getMessage() for record in caplog.records if "begins empty" in record.getMessage()]
    assert len(warned) == len(STORES)
    for store, message in zip(sorted(STORES), sorted(warned), strict=True):
        assert message.startswith(f"task 0_1: its store {store!r} begins empty")
    more(site)
    site.die()
    site.run()
    assert site.held == site.expected(since={1: ROWS})


def test_a_store_gets_a_changelog_with_all_its_rows_and_loses_it_again(tmp_path):
    """Rows that went and came while there was no changelog are gone and there in it."""
    site = Site.of(tmp_path, ROWS, logging=True)
    site.run()
    off = under(site, logging=False)
    change = changes(off)
    assert {each.fate for each in change.stores} == {Fate.GOES_ON}
    assert {each.store: each.notes for each in change.stores}["sums"] == (
        "it no longer has a changelog; the one that is there stays as it is",
    )
    versions = {name: DeltaTable(site.warehouse / "visits" / "_changelog" / name).version() for name in STORES}
    more(off, 3 * ROWS)
    off.run()
    assert versions == {name: DeltaTable(site.warehouse / "visits" / "_changelog" / name).version() for name in STORES}
    on = under(off, logging=True)
    change = changes(on)
    assert {each.fate for each in change.stores} == {Fate.GOES_ON}
    assert {each.store: each.notes for each in change.stores}["sums"] == (
        "it has a changelog from now on, which gets all its rows in the first epoch",
    )
    more(on)
    on.run()
    assert unlogged(on) == {"visits_0": set(), "visits_1": set()}
    for task in ("0_0", "0_1"):
        lose(on, task)
    on.run()
    assert on.held == on.expected()
    assert len(on.restores.done) == 2


def test_a_changelog_that_was_given_up_is_never_restored_from(tmp_path):
    """The store begins empty although it is there, also once it has been compacted, and once it is written again."""
    site = Site.of(tmp_path, ROWS, logging=True)
    site.snapshot_rows = 1
    site.run()
    off = under(site, logging=False)
    more(off)
    off.run()
    compact(off)
    for task in ("0_0", "0_1"):
        lose(off, task)
    off.run()
    since = {0: 2 * ROWS, 1: 2 * ROWS}
    assert off.held == off.expected(since=since)
    more(off)
    on = under(off, logging=True)
    more(on)
    on.run()
    compact(on)
    for task in ("0_0", "0_1"):
        lose(on, task)
    on.run()
    assert on.held == on.expected(since=since)
    assert len(on.restores.done) == 2


def test_a_changelog_of_a_store_that_was_dropped_without_one_does_not_come_back(tmp_path):
    site = Site.of(tmp_path, ROWS, logging=True)
    site.run()
    off = under(site, logging=False)
    more(off)
    off.run()
    TaskStoreCache.close_all()
    builder = StreamsBuilder()
    builder.stream("visits", key=String("user"), value=Int64("pages")).group_by_key().count("always")
    off.application = Application("visits", builder)
    off.run()
    on = under(off, logging=True)
    assert changes(on).of(Fate.BEGINS_EMPTY) == STORES
    more(on)
    on.run()
    since = {0: 2 * ROWS, 1: 2 * ROWS}
    assert on.held == on.expected(since=since)
    for task in ("0_0", "0_1"):
        lose(on, task)
    on.run()
    assert on.held == on.expected(since=since)


def test_a_store_without_a_changelog_gets_one_that_was_not_there_before(tmp_path):
    site = Site.of(tmp_path, ROWS, logging=False)
    site.run()
    on = under(site, logging=True)
    on.run()
    for task in ("0_0", "0_1"):
        lose(on, task)
    more(on)
    on.run()
    assert on.held == on.expected()


@pytest.mark.parametrize(
    ("step", "occurrence"),
    [("pivot appended", 1), ("files written", 2), ("state written", 1), ("pivot appended", 2)],
)
def test_a_process_killed_while_a_changelog_gets_the_rows_writes_them_again(tmp_path, step, occurrence):
    site = Site.of(tmp_path, 2 * ROWS, logging=False)
    site.run()
    TaskStoreCache.close_all()
    assert killed_at(site, True, step, occurrence)
    on = under(site, logging=True)
    on.run()
    lose(on, "0_0")
    lose(on, "0_1")
    on.run()
    assert on.held == on.expected()


def test_a_store_that_is_lost_before_its_new_changelog_has_its_rows_stops_the_run(tmp_path):
    site = Site.of(tmp_path, ROWS, logging=False)
    site.run()
    lose(site, "0_1")
    on = under(site, logging=True)
    with pytest.raises(UnloggedStoreLostError, match='declare the store with logging=False, on_loss="empty" again'):
        on.run()
    off = under(on, logging=False)
    off.run()
    on = under(off, logging=True)
    more(on)
    on.run()
    lose(on, "0_1")
    on.run()
    assert on.held == on.expected(since={1: ROWS})


def test_a_store_that_evolves_needs_its_changelog_first(tmp_path):
    site = Site.of(tmp_path, ROWS, logging=False)
    site.run()
    changed = under(site, logging=False, mean=Mean("pages"))
    fates = {each.store: each.fate for each in changes(changed).stores}
    assert fates == {**dict.fromkeys(STORES, Fate.IS_REBUILT), "always": Fate.GOES_ON}
    with pytest.raises(TopologyChangedError, match="run the program as it was with logging=True first"):
        changed.run()
    under(changed, logging=True).run()
    changed = under(changed, logging=False, mean=Mean("pages"))
    assert Fate.IS_REBUILT not in {each.fate for each in changes(changed).stores}
    more(changed)
    changed.run()
    assert changed.held == changed.expected()
    assert set(unlogged(changed)["visits_0"]) == set(STORES)


def test_an_accepted_loss_begins_empty_without_a_changelog(tmp_path):
    site = Site.of(tmp_path, ROWS, logging=False)
    site.run()
    changed = under(site, logging=False, mean=Mean("pages"))
    more(changed)
    changed.run(accept_state_loss=True)
    assert changed.held == changed.expected(since={0: ROWS, 1: ROWS})


def test_what_reads_changelogs_leaves_it_out(tmp_path):
    site = Site.of(tmp_path, ROWS, logging=False)
    site.snapshot_rows = 1
    site.run()
    settings = Settings(dir=tmp_path)
    rows = sum(agreement.rows for agreement in verify_application(settings, site.application))
    assert rows == len(site.expected()["always"])
    assert {each.store: each.is_logged for each in stores_of(settings, "visits")} == {
        **dict.fromkeys(STORES, False),
        "always": True,
    }
    compaction = Compaction(site.warehouse, "visits", is_whole=True)
    assert [name for name in compaction.tables() if name.startswith("_changelog")] == ["_changelog/always"]
    assert not list((site.warehouse / "visits" / "_snapshots").glob("*/*"))


def test_a_store_without_a_changelog_that_the_program_leaves_out_is_dropped(tmp_path):
    site = Site.of(tmp_path, ROWS, logging=False)
    site.run()
    full, builder = site.application, StreamsBuilder()
    visits = builder.stream("visits", key=String("user"), value=Int64("pages"))
    visits.group_by_key().count("always")
    site.application = Application("visits", builder)
    dropped = {each.store: each.notes for each in changes(site).stores if each.fate is Fate.IS_DROPPED}
    assert dropped == dict.fromkeys(STORES, ("it has no changelog that could keep its rows",))
    site.run()
    site.application = full
    assert changes(site).of(Fate.BEGINS_EMPTY) == STORES
    more(site)
    site.run()
    assert site.held == site.expected(since={0: ROWS, 1: ROWS})


def test_a_backfill_of_everything_is_refused_and_then_made_with_changelogs(tmp_path):
    site = Site.of(tmp_path, ROWS, logging=False)
    site.run()
    with pytest.raises(UnloggedStoreError, match="backfill the program with logging=True for it"):
        begun_whole(site, site.application)
    lose(site, "0_1")
    site.run()
    assert site.held != site.expected()
    on = under(site, logging=True)
    shadow = begun_whole(on, on.application)
    run_shadow(on, shadow, on.application)
    swap_everything(on.warehouse, on.application, shadow)
    on.run()
    more(on)
    off = under(on, logging=False)
    off.run()
    assert off.held == off.expected()
    assert set(unlogged(off)["visits_1"]) == set(STORES)
