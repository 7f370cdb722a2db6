"""Programs whose structs change inside, over committed state: compared with a plain count over all records."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from tests.examples import combined
from tests.pipelines.backfill.inline import begun_whole, run_shadow
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.nested import (
    DECIMALS,
    MORE,
    Version,
    by_user,
    held,
    newest_counted,
    orders,
    shown,
    totals_counted,
)
from weir.pipelines.backfill.everything import swap_everything
from weir.pipelines.spark.errors import TopologyChangedError
from weir.pipelines.tasks.tables import application_tables
from weir.state.changelog.upserts import refresh_at_rest
from weir.state.commit.tables import read_rows, read_table
from weir.state.errors import TableSchemaError


@pytest.fixture
def place(tmp_path):
    return Place(Version().application(), Topics({("orders", 0): orders(0, 60)}), tmp_path, max_records=25)


def require_stores(place: Place, version: Version) -> None:
    assert held(place, "totals") == totals_counted(place, version)
    assert held(place, "newest") == held(place, "again") == newest_counted(place, version)


def require_outputs(place: Place, version: Version) -> None:
    folder = place.warehouse / "orders"
    assert by_user(read_table(folder / f"{version.outputs}_totals")) == totals_counted(place, version)
    refresh_at_rest(folder, application_tables(place.application.topology), "orders")
    assert by_user(read_rows(folder / f"{version.outputs}_newest")) == newest_counted(place, version)
    facts = read_table(folder / f"{version.outputs}_facts").sort("_ts")
    wanted = [shown(json.loads(value), version.order) for _, value, _ in place.topics.rows["orders", 0]]
    assert facts.select(*wanted[0]).to_dicts() == wanted


VERSIONS = {
    "fields added": Version(adds=True),
    "fields added, the other way round": Version(adds=True, is_reversed=True),
    "the other way round": Version(is_reversed=True),
    "fields left out": Version(leaves_out=True, outputs="shorter"),
    "wider": Version(price=DECIMALS["wider"], outputs="wider"),
    "all": Version(adds=True, leaves_out=True, price=DECIMALS["wider"], is_reversed=True, outputs="all"),
}


@combined("name,loses_disk", VERSIONS, [False, True])
def test_what_structs_hold_goes_on_under_a_changed_program(place, name, loses_disk):
    place.run()
    require_stores(place, Version())
    require_outputs(place, Version())
    version = VERSIONS[name]
    place.application = version.application()
    place.topics.rows["orders", 0] += orders(60, 4, **MORE)
    if loses_disk:
        for data in place.state_folder.glob("*/*/data.mdb"):
            data.unlink()
    place.run()
    require_stores(place, version)
    if version.outputs == "out":
        require_outputs(place, version)
    place.topics.rows["orders", 0] += orders(64, 30, **MORE)
    place.run()
    require_stores(place, version)
    if version.outputs == "out":
        require_outputs(place, version)


STEPS = ["pivot appended", "table appended", "settled", "files written", "state written"]


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_of_the_first_run_with_other_structs_loses_nothing(place, step):
    place.run()
    version = VERSIONS["all"]
    place.application = version.application()
    place.topics.rows["orders", 0] += orders(60, 30, **MORE)
    left = [2]

    def crash(found):
        left[0] -= found == step
        if found == step and left[0] == 0:
            raise KeyboardInterrupt(step)

    try:
        place.run(on_step=crash)
    except (KeyboardInterrupt, Exception):
        assert left[0] <= 0
    place.run()
    require_stores(place, version)


def test_a_program_with_wider_types_resumes_after_its_start_has_committed_and_its_driver_is_gone(place):
    place.run()
    place.application = Version(price=DECIMALS["wider"], outputs="wider").application()
    place.driver()  # claims, and commits that its tasks are restored
    place.run()
    require_stores(place, Version(price=DECIMALS["wider"]))


def test_an_output_whose_structs_lack_a_field_or_have_another_type_is_refused_with_ways_out_that_work(place):
    place.run()
    place.application = Version(leaves_out=True).application()
    with pytest.raises(TableSchemaError) as refused:
        place.run()
    assert str(refused.value) == (
        "table 'out_facts' of 'orders' cannot take this program's rows: `last.at.zip` is left out, "
        "`visits[].value.seconds` is left out; columns may only be added, to structs too: keep the old ones, or write "
        "to a table with another name"
    )
    place.application = Version(price=DECIMALS["wider"]).application()
    with pytest.raises(TableSchemaError, match=r"`lines\[\].price` was decimal\(10,2\), is decimal\(14,4\); columns"):
        place.run()
    place.application = Version().application()
    place.run()
    place.application = Version(leaves_out=True, outputs="another").application()
    place.topics.rows["orders", 0] += orders(60, 10)
    place.run()
    require_stores(place, Version(leaves_out=True))


def test_a_field_that_looks_renamed_is_refused(place):
    place.run()
    place.application = Version(zip_name="postcode", outputs="other").application()
    with pytest.raises(TopologyChangedError, match=r"if it is the same, call it 'newest.last.at.zip'"):
        place.run()
    place.application = Version(outputs="other").application()
    place.run()
    require_stores(place, Version())


def test_a_field_of_another_type_is_refused_and_the_accepted_loss_begins_its_stores_anew(place):
    place.run()
    other = Version(ref=int, outputs="out")
    rows = [
        (key, json.dumps({**(each := json.loads(value)), "last": {**each["last"], "ref": 7}}).encode(), at)
        for key, value, at in orders(60, 12)
    ]
    place.topics.rows["orders", 0] += rows
    place.application = other.application()
    with pytest.raises(TableSchemaError, match=r"`last\.ref` was string, is long; columns .* another name"):
        place.run()
    place.application = Version().application()  # nothing is lost so far
    place.topics.rows["orders", 0] = orders(0, 60)
    place.run()
    require_stores(place, Version())
    other = replace(other, outputs="other")
    place.application = other.application()
    place.topics.rows["orders", 0] += rows
    with pytest.raises(TopologyChangedError, match=r"because its `newest\.last\.ref` was string, is long"):
        place.run()
    place.run(accept_state_loss=True)
    place.topics.rows["orders", 0] = rows
    require_stores(place, other)
    require_outputs(place, other)
    place.topics.rows["orders", 0] = orders(0, 60) + rows + (more := rows[:3])
    for data in place.state_folder.glob("*/*/data.mdb"):
        data.unlink()
    place.run()
    place.topics.rows["orders", 0] = rows + more
    require_stores(place, other)


@pytest.mark.parametrize("step", ["pivot appended", "table appended", "settled"])
def test_a_crash_while_a_loss_is_accepted_leaves_it_accepted_or_not_begun(place, step):
    place.run()
    other = Version(ref=int, outputs="other")
    place.application = other.application()

    def crash(found):
        if found == step:
            raise KeyboardInterrupt(step)

    with pytest.raises(KeyboardInterrupt):
        place.run(on_step=crash, accept_state_loss=True)
    place.run()
    assert held(place, "totals") == held(place, "newest") == {}


@pytest.mark.parametrize("step", [None, "pivot appended", "table appended"])
def test_a_backfill_of_everything_computes_what_a_field_of_another_type_would_hold(place, step):
    place.run()
    other = Version(ref=Decimal, outputs="other")
    shadow = run_shadow(place, begun_whole(place, other.application()), other.application())

    def crash(found):
        if found == step:
            raise KeyboardInterrupt(step)

    if step:
        with pytest.raises(KeyboardInterrupt):
            swap_everything(place.warehouse, other.application(), shadow, crash)
    else:
        swap_everything(place.warehouse, other.application(), shadow)
    place.application = other.application()
    place.run()
    require_stores(place, other)
    require_outputs(place, other)
    place.topics.rows["orders", 0] += orders(60, 10)
    place.run()
    require_stores(place, other)


def test_an_old_field_of_another_type_makes_way_for_a_new_one(place):
    place.run()
    place.application = Version(leaves_out=True, outputs="shorter").application()
    place.topics.rows["orders", 0] += orders(60, 10)
    place.run()

    class Other(Version):
        def made(self, name, fields, added, left_out=""):
            if left_out:
                fields = {**fields, left_out: bool | None}
            return super().made(name, fields, added)

    other = Other(outputs="bools")
    rows = [
        (key, value.replace(b'"zip": "', b'"was": "').replace(b'"seconds"', b'"were"'), at)
        for key, value, at in place.topics.rows["orders", 0]
    ]
    place.topics.rows["orders", 0] = rows
    place.application = other.application()
    place.run()
    require_stores(place, other)


def test_aggregates_in_another_order_keep_their_values(place):
    place.run()
    place.application = Version(is_reversed=True).application()
    place.topics.rows["orders", 0] += orders(60, 30)
    place.run()
    require_stores(place, Version())
