"""Tables that their owner has made append-only (``delta.appendOnly``): rows may come and be packed, none may go."""

from __future__ import annotations

import json

import pytest
from deltalake import DeltaTable

from tests.state.changelog.countries import UPDATES, Countries
from tests.state.changelog.twins import Twins
from weir.state.commit.tables import file_actions, read_rows
from weir.state.errors import AppendOnlyError, SwapRefusedError


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
    assert [entries_that_remove_rows(twins.app / name) for name in names] == [[], [], []]
    for name in names:
        set_append_only(twins.app / name, False)
    assert twins.compact()["totals"].files_after == 1
    twins.check()
    twins.close()


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
    with pytest.raises(AppendOnlyError, match="countries of 'app' is append-only"):
        upserts.refresh()
    with pytest.raises(AppendOnlyError, match="countries of 'app' is append-only"):
        there.start()
    assert there.shown() == {("ad", 2000): 1}
    set_append_only(there.folder, False)
    there.start()
    there.upserts().refresh()
    assert there.shown() == {("ad", 2000): 2}
