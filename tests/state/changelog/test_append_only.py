"""Tables that their owner has made append-only (``delta.appendOnly``): rows may come and be packed, none may go."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest
from deltalake import DeltaTable

from tests.state.changelog.countries import UPDATES, Countries
from tests.state.changelog.twins import CHANGES, Twins
from weir.state.commit import delta_log
from weir.state.commit.delta_log import replace_files
from weir.state.commit.evolution import evolution, evolve
from weir.state.commit.log import COMMITS
from weir.state.commit.outbox import Mark, Outbox, outbox_name, refused_name
from weir.state.commit.refused import Refused
from weir.state.commit.tables import AppendTable, file_actions, read_rows
from weir.state.errors import AppendOnlyError, SwapRefusedError
from weir.state.types import TableSpec


def set_append_only(folder, is_so: bool = True) -> None:
    value = "true" if is_so else "false"
    DeltaTable(folder).alter.set_table_properties({"delta.appendOnly": value}, raise_if_not_exists=False)


def entries_that_remove_rows(folder) -> list[str]:
    """The log's entries that Delta forbids for such a table: removals that change data."""
    found = []
    for entry in sorted((folder / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        if any("remove" in action and action["remove"]["dataChange"] for action in actions):
            found.append(entry.name)
    return found


def test_appends_go_on_and_compaction_packs_facts_but_leaves_out_what_would_drop_rows(tmp_path):
    twins = Twins(tmp_path)
    names = ("facts", "totals", "_changelog/totals")
    for name in names:
        set_append_only(twins.app / name)
    twins.commit(6)
    before = {name: read_rows(twins.app / name).height for name in names}
    reports = twins.compact()
    twins.check()
    assert {name: read_rows(twins.app / name).height for name in names} == before
    assert file_actions(DeltaTable(twins.app / "facts")).height == 1, "packing rearranges rows, which is allowed"
    assert reports["totals"].files_after == reports["totals"].files_before
    assert [name for name, report in reports.items() if report.is_append_only] == ["_changelog/totals", "totals"]
    assert [entries_that_remove_rows(twins.app / name) for name in names] == [[], [], []]
    for name in names:
        set_append_only(twins.app / name, False)
    assert twins.compact()["totals"].files_after == 1
    twins.check()
    twins.close()


@pytest.mark.parametrize("name", ["totals", "_changelog/totals"])
def test_a_table_that_becomes_append_only_while_its_rows_are_merged_keeps_them(tmp_path, name):
    twins = Twins(tmp_path)
    twins.commit(4)
    reports = twins.compact(on_step=lambda step: set_append_only(twins.app / name) if step == "rows written" else None)
    twins.check()
    assert entries_that_remove_rows(twins.app / name) == []
    assert (reports[name].is_append_only, reports[name].rows_after) == (True, reports[name].rows_before)
    set_append_only(twins.app / name, False)
    report = twins.compact()[name]
    assert (report.is_append_only, report.rows_after < report.rows_before) == (False, True)
    twins.check()
    twins.close()


def test_a_replacement_sees_that_a_table_became_append_only_just_before_it(tmp_path, monkeypatch):
    """Between its look at the table and its entry: entries of others are read before one is written after them."""
    there = Countries(tmp_path)
    there.commit([(("ad", 2000), 1)])
    folder, live = there.app / UPDATES.name, delta_log._live
    files = file_actions(DeltaTable(folder))

    def set_meanwhile(table):
        set_append_only(folder)
        return live(table)

    monkeypatch.setattr(delta_log, "_live", set_meanwhile)
    assert replace_files(folder, files.clear(), [], is_data_changed=False), "no row goes"
    with pytest.raises(AppendOnlyError, match="countries is append-only"):
        replace_files(folder, files, [], is_data_changed=True)
    set_append_only(folder, False)
    monkeypatch.setattr(delta_log, "_live", live)
    assert entries_that_remove_rows(folder) == []
    assert replace_files(folder, files, [], is_data_changed=True)
    assert read_rows(folder).is_empty()


def test_old_commit_rows_stay_until_the_log_is_no_longer_append_only(tmp_path):
    twins = Twins(tmp_path)
    twins.commit(6)
    log = twins.app / COMMITS.name
    set_append_only(log)
    before = read_rows(log)
    report = twins.compact()[COMMITS.name]
    assert (report.is_append_only, report.files_before, report.files_after) == (True, 7, 7)
    assert entries_that_remove_rows(log) == []
    assert read_rows(log).sort("epoch").equals(before.sort("epoch"))
    set_append_only(log, False)
    assert twins.compact()[COMMITS.name].files_after == 2
    twins.check()
    twins.close()


@pytest.mark.parametrize("changed", [{"schema": pl.Schema({**CHANGES.schema, "n": pl.String()})}, {"keys": ("k", "n")}])
def test_a_changelog_is_not_written_anew_until_it_is_no_longer_append_only(tmp_path, changed):
    """With other types or other keys; a new column needs no row written anew, and is allowed."""
    twins = Twins(tmp_path)
    twins.commit(3)
    folder, other = twins.app / CHANGES.name, replace(CHANGES, **changed)
    set_append_only(folder)
    before = read_rows(folder)
    evolve(twins.app, replace(CHANGES, schema=pl.Schema({**CHANGES.schema, "more": pl.Int64()})))
    with pytest.raises(AppendOnlyError, match=r"totals is append-only .* set that property to false, and try again"):
        evolve(twins.app, other)
    assert entries_that_remove_rows(folder) == []
    assert read_rows(folder).drop("more").equals(before)
    set_append_only(folder, False)
    evolve(twins.app, other)
    assert not evolution(twins.app, other)
    twins.close()


def test_rows_that_a_sink_refused_are_deleted_once_their_table_is_not_append_only(tmp_path):
    outbox = TableSpec(name=outbox_name("orders"), schema=pl.Schema({"n": pl.Int64(), "_epoch": pl.Int64()}))
    AppendTable.create(tmp_path, outbox, "app")
    refused = Refused(tmp_path, "orders", "app")
    refused.add(pl.DataFrame({"n": [1, 2], "_epoch": [1, 1]}), Mark(1, 2), "no tea")
    folder = tmp_path / refused_name("orders")
    set_append_only(folder)
    with pytest.raises(AppendOnlyError, match="orders is append-only"):
        refused.discard(refused.all()["number"].to_list())
    with pytest.raises(AppendOnlyError, match="orders is append-only"):
        Outbox(tmp_path, "orders", "app", is_of_refused=True).remove(Mark(1 << 62, 0))
    assert (refused.count(), entries_that_remove_rows(folder)) == (2, [])
    set_append_only(folder, False)
    assert refused.discard(refused.all()["number"].to_list()) == 2


def test_a_swap_is_refused_before_its_pivot(tmp_path):
    there = Countries(tmp_path)
    there.commit([(("ad", 2000), 1)])
    set_append_only(there.app / UPDATES.name)
    with pytest.raises(SwapRefusedError, match=r"'countries' is append-only \(delta.appendOnly\)"):
        there.swap({("be", 2001): 5}, there.epoch)
    assert entries_that_remove_rows(there.app / UPDATES.name) == []
    there.commit([(("ad", 2000), 2)])
    set_append_only(there.app / UPDATES.name, False)
    there.swap({("be", 2001): 5}, there.epoch)
    there.upserts().refresh()
    assert there.shown() == {("be", 2001): 5}


def test_a_swap_whose_table_became_append_only_after_the_pivot_is_finished_once_it_is_not(tmp_path):
    there = Countries(tmp_path)
    there.commit([(("ad", 2000), 1)])
    there.driver._on_step = lambda step: set_append_only(there.app / UPDATES.name) if step == "pivot appended" else None
    with pytest.raises(AppendOnlyError):
        there.swap({("be", 2001): 5}, there.epoch)
    with pytest.raises(AppendOnlyError):
        there.start()
    set_append_only(there.app / UPDATES.name, False)
    there.start()
    there.upserts().refresh()
    assert there.shown() == {("be", 2001): 5}


def test_a_table_of_upserts_is_refused_at_the_claim_and_at_a_refresh(tmp_path):
    there = Countries(tmp_path)
    there.commit([(("ad", 2000), 1)])
    upserts = there.upserts()
    upserts.refresh()
    set_append_only(there.folder)
    there.commit([(("ad", 2000), 2)])
    with pytest.raises(AppendOnlyError, match="countries is append-only"):
        upserts.refresh()
    with pytest.raises(AppendOnlyError, match="countries is append-only"):
        there.start()
    assert there.shown() == {("ad", 2000): 1}
    set_append_only(there.folder, False)
    there.start()
    there.upserts().refresh()
    assert there.shown() == {("ad", 2000): 2}
