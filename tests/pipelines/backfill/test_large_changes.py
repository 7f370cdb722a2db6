"""A swap that would change much is refused, shows what it would change, and every way out that it offers works."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from tests.pipelines.backfill.inline import begun_whole, copied, made, of_days, output, run_shadow
from tests.pipelines.backfill.program import DAYS, OUTPUTS, mended, sensors
from tests.pipelines.spark.inline import Place
from weir import read_table
from weir.infra.settings import Settings
from weir.pipelines.backfill.differences import TableDifference, require_small
from weir.pipelines.backfill.errors import LargeChangeError
from weir.pipelines.backfill.shadow import Shadow, shadows
from weir.pipelines.cli.app import app as weir
from weir.pipelines.operations.registry import register

pytestmark = pytest.mark.slow

PROGRAM = "tests.pipelines.backfill.program"
TABLES = (*OUTPUTS, "totals")
KINDS = ["days", "everything"]
KEYS = {"overlapping": 3, "totals": 1}
"""The tables of updates, whose first columns are the key: a sensor, and its window if it has one."""


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Place:
    """A folder with the live application."""
    place = sensors(tmp_path_factory.mktemp("live"))
    place.run()
    register(Settings(dir=place.folder), "sensors", f"{PROGRAM}:app")
    return place


@pytest.fixture(scope="module")
def wanted(template, tmp_path_factory) -> dict[str, dict]:
    """What the outputs are to hold afterwards, with the days or everything of the fixed program."""
    fixed = sensors(tmp_path_factory.mktemp("fixed"), mended)
    fixed.run()
    everything = {table: output(fixed, table) for table in TABLES}
    days = {table: output(template, table) for table in TABLES}
    for table in OUTPUTS:
        mixed = [of_days(rows, DAYS, inside=rows is everything[table]) for rows in (days[table], everything[table])]
        days[table] = mixed[0].vstack(mixed[1]).sort(mixed[0].columns)
    return {"days": days, "everything": everything}


@pytest.fixture(scope="module", params=KINDS)
def refusable(request, template, tmp_path_factory) -> tuple[str, Place]:
    """A folder with a complete backfill, of days or of everything, by the fixed program."""
    place = copied(template, tmp_path_factory.mktemp(request.param))
    if request.param == "days":
        made(place, DAYS, mended)
    else:
        run_shadow(place, begun_whole(place, mended), mended)
    return request.param, place


@pytest.fixture
def backfill(refusable, tmp_path) -> tuple[str, Place, Shadow]:
    kind, place = refusable
    place = copied(place, tmp_path)
    [shadow] = shadows(place.warehouse, place.folder / "shadows", "sensors")
    return kind, place, shadow


def command(place: Place, *arguments: str):
    return CliRunner().invoke(weir, ["backfill", *arguments, "--dir", str(place.folder)])


def outputs(place: Place) -> dict:
    return {table: output(place, table) for table in TABLES}


def assert_same(found: dict, rows: dict) -> None:
    for table in TABLES:
        assert_frame_equal(found[table], rows[table])


def files(place: Place) -> set[Path]:
    return set((place.warehouse / "sensors").rglob("*.parquet"))


def model(table: str, before, after) -> tuple[int, int, int]:
    """Removed, changed, added rows, one by one."""
    lost, won = (Counter(rows.rows()) - Counter(others.rows()) for rows, others in ((before, after), (after, before)))
    changed = len({row[: KEYS[table]] for row in lost} & {row[: KEYS[table]] for row in won}) if table in KEYS else 0
    return lost.total() - changed, changed, won.total() - changed


def test_a_swap_that_changes_much_is_refused_with_its_counts_and_changes_nothing(backfill, wanted):
    kind, place, shadow = backfill
    before, files_before = outputs(place), files(place)
    refused = command(place, "swap", "sensors", shadow.id)
    assert refused.exit_code == 1
    for table in OUTPUTS if kind == "days" else TABLES:
        removed, changed, added = model(table, before[table], wanted[kind][table])
        assert removed + changed + added > 0
        [shown] = re.findall(rf"^{table} .*$", refused.stderr, re.MULTILINE)
        assert f"({removed:,} removed, {changed:,} changed, {added:,} added, " in shown
    message = refused.stderr[refused.stderr.index("weir: backfill") :]
    assert "more than 1 % of a table's rows: " in message
    assert "hours " in message
    assert_same(outputs(place), before)
    if kind == "days":
        assert files(place) == files_before, "nothing was written"
    assert shadow.completion is not None
    place.run()  # the live program continues as if nothing had happened
    assert_same(outputs(place), before)


def offered(place: Place, program: str, shadow: Shadow) -> str:
    """What a refused swap says."""
    refused = command(place, "swap", program, shadow.id)
    assert refused.exit_code == 1
    return refused.stderr


@pytest.mark.parametrize("program", ["sensors", f"{PROGRAM}:mended"])
def test_each_command_that_a_refusal_offers_does_what_it_says(backfill, wanted, tmp_path_factory, program):
    kind, place, shadow = backfill
    before = outputs(place)
    commands = re.findall(r"`weir backfill ([^`]*)`", offered(place, program, shadow))
    assert [each.split()[0] for each in commands] == ["swap", "discard"]
    assert commands[0].split()[1:4] == [program, shadow.id, "--yes"]
    for each, after in zip(commands, (wanted[kind], before), strict=True):
        there = copied(place, tmp_path_factory.mktemp("there"))
        done = command(there, *each.split())
        assert done.exit_code == 0, done.output
        assert_same(outputs(there), after)
        assert list(shadows(there.warehouse, there.folder / "shadows", "sensors")) == []


def test_a_larger_share_is_allowed_if_asked_for_and_none_with_zero(backfill, wanted):
    kind, place, shadow = backfill
    assert "more than 0 % of" in command(place, "swap", "sensors", shadow.id, "--max-change", "0").stderr
    assert "(--max-change SHARE in place of --yes, or max_change in the config" in offered(place, "sensors", shadow)
    done = command(place, "swap", "sensors", shadow.id, "--max-change", "1")
    assert done.exit_code == 0, done.output
    assert "swapped in by the commit" in done.stdout
    assert_same(outputs(place), wanted[kind])


def test_the_tables_of_a_refused_backfill_can_be_read(backfill, wanted):
    kind, place, shadow = backfill
    [folder] = re.findall(r"Its own tables are in (\S+), for `weir\.read_table`", offered(place, "sensors", shadow))
    for table in OUTPUTS if kind == "days" else TABLES:
        rows = read_table(Path(folder) / table).drop("_epoch", "_seq", "_deleted")
        after = wanted[kind][table]
        if kind == "days" and table != "totals":
            rows, after = (of_days(each, DAYS, inside=True) for each in (rows, after))
        assert_frame_equal(rows.sort(rows.columns), after)


@pytest.mark.parametrize("kind", KINDS)
def test_a_backfill_by_the_same_program_is_swapped_in_unasked(template, tmp_path, kind):
    place = copied(template, tmp_path)
    before = outputs(place)
    shadow = made(place, DAYS) if kind == "days" else run_shadow(place, begun_whole(place))
    done = command(place, "swap", "sensors", shadow.id, "--max-change", "0")
    assert done.exit_code == 0, done.output
    for table in OUTPUTS:
        assert re.search(rf"^{table} .* \(0 removed, 0 changed, 0 added, \d+ unchanged\)$", done.stderr, re.MULTILINE)
    assert_same(outputs(place), before)


NOTHING = TableDifference(table="clicks", removed=0, changed=0, added=0, unchanged=0, sums={})


@pytest.mark.parametrize(
    ("difference", "max_change", "is_refused"),
    [
        (replace(NOTHING, removed=1, unchanged=99), 0.01, False),
        (replace(NOTHING, removed=1, changed=1, unchanged=98), 0.01, True),
        (replace(NOTHING, changed=2, unchanged=98), 0.02, False),
        (replace(NOTHING, removed=1, unchanged=10**9), 0.0, True),
        (replace(NOTHING, added=188_781), 0.0, False),
        (replace(NOTHING, added=70_603, unchanged=118_178), 0.01, False),
        (replace(NOTHING, removed=118_178, added=188_781), 0.01, True),
        (replace(NOTHING, removed=118_178, added=188_781), 1.0, False),
    ],
)
def test_the_share_of_the_rows_before_that_go_or_change_decides(tmp_path, difference, max_change, is_refused):
    shadow = Shadow.of(tmp_path, tmp_path, "shop", "20240503-20240505-000000")
    small = replace(NOTHING, table="orders", unchanged=7)
    if not is_refused:
        require_small(shadow, [small, difference], max_change, "shop")
        return
    with pytest.raises(LargeChangeError) as refused:
        require_small(shadow, [small, difference], max_change, "shop")
    assert refused.value.tables == (str(difference),)


def test_a_refusal_names_the_table_its_rows_and_the_ways_out(tmp_path):
    shadow = Shadow.of(Path("/warehouse"), tmp_path, "shop", "20240503-20240505-000000")
    clicks = replace(NOTHING, removed=118_178, added=188_781, sums={"cents": (1_000_000.0, 2.5)})
    with pytest.raises(LargeChangeError) as refused:
        require_small(shadow, [clicks], 0.01, "my_jobs.shop:app")
    assert str(refused.value) == (
        "backfill '20240503-20240505-000000' of 'shop' was not swapped in, since it would remove or change more than "
        "1 % of a table's rows: clicks 118,178 -> 188,781 rows (118,178 removed, 0 changed, 188,781 added, 0 "
        "unchanged); sum of cents 1,000,000 -> 2.5. Its own tables are in "
        "/warehouse/shop/_backfills/20240503-20240505-000000, for `weir.read_table` or any reader of Delta. Swap it in "
        "anyway with `weir backfill swap my_jobs.shop:app 20240503-20240505-000000 --yes` (--max-change SHARE "
        "in place of --yes, or max_change in the config of Dagster's run, sets another limit), or discard it "
        "with `weir backfill discard shop 20240503-20240505-000000`"
    )
