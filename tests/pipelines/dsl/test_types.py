"""What the type checker tells a program's author before the program runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """\
from datetime import timedelta
from typing import assert_type

from polars import col

from weir import (
    BranchedKStream,
    BufferConfig,
    CogroupedKStream,
    Count,
    Int64,
    JoinWindows,
    KGroupedTable,
    KStream,
    KTable,
    SessionWindowedKStream,
    SessionWindows,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindowedKStream,
    TimeWindows,
)

HOUR = timedelta(hours=1)
NEAR = JoinWindows.of_time_difference_with_no_grace(HOUR)

builder = StreamsBuilder()
stream = builder.stream("clicks", key=String("user"), value=Int64("ms"))
other = builder.stream("views", key=String("user"), value=Int64("ms"))
table = builder.table("users", key=String("user"), value=String("city"), store="users", history_retention=HOUR)
world = builder.global_table("cities", key=String("city"), value=String("country"), store="cities")


def joined(value: int, other: str) -> str:
    return other * value


# each kind leads to the others
grouped = stream.filter(col("ms") > 1).map_values(ms="ms").select_key("ms").merge(other).group_by_key()
assert_type(grouped.count("a"), KTable)
assert_type(grouped.windowed_by(TimeWindows.of_size_with_no_grace(HOUR)), TimeWindowedKStream)
assert_type(grouped.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(HOUR)), SessionWindowedKStream)
assert_type(grouped.windowed_by(TimeWindows.of_size_with_no_grace(HOUR)).agg("b", n=Count()), KTable)
assert_type(grouped.cogroup(n=Count()).cogroup(grouped, m=Count()), CogroupedKStream)
assert_type(grouped.cogroup(n=Count()).agg("c"), KTable)
assert_type(table.filter(col("city") != "").join(table).to_stream(), KStream)
assert_type(table.filter(col("city") != "", store="kept").map_values(city="city", store="mapped"), KTable)
assert_type(table.group_by("city"), KGroupedTable)
assert_type(table.group_by("city").count("d").to_stream().to_table("e"), KTable)
assert_type(stream.split().branch(col("ms") > 1, then=lambda branch: branch.filter(col("ms") > 2)), BranchedKStream)
assert_type(stream.split().branch(col("ms") > 1).no_default_branch(), dict[str, KStream])
grouped.windowed_by(TimeWindows.of_size_with_no_grace(HOUR), late_to=lambda late: late.to_delta("late"))
table.join(stream)  # an error
stream.merge(table)  # an error
stream.group_by_key().cogroup(n=Count()).cogroup(stream, m=Count())  # an error

# joins with a stream
assert_type(stream.join(other, windows=NEAR, store="pairs"), KStream)
stream.left_join(other, joined, windows=NEAR, store="pairs")
stream.outer_join(other, windows=NEAR, store="pairs")
stream.outer_join(other, joined, windows=NEAR, store="pairs")
stream.join(other)  # an error
stream.join(other, windows=NEAR)  # an error
stream.left_join(other, store="pairs")  # an error
stream.left_join(other, windows=NEAR, store=("mine", "theirs"), name="mine", retention=HOUR)
stream.left_join(other, windows=NEAR, store=("mine",))  # an error
stream.join(other, windows=NEAR, store="pairs", grace=HOUR)  # an error
stream.outer_join(other, windows=NEAR)  # an error
stream.outer_join(table)  # an error
stream.outer_join(table, windows=NEAR, store="pairs")  # an error

# joins with a table
assert_type(stream.join(table), KStream)
stream.left_join(table, joined, name="mine")
stream.join(table, grace=HOUR, store="waiting")
stream.left_join(table, joined, grace=HOUR, store="waiting", name="mine")
stream.join(table, windows=NEAR)  # an error
stream.join(table, windows=NEAR, store="pairs")  # an error
stream.join(table, grace=HOUR)  # an error
stream.left_join(table, store="waiting")  # an error
stream.left_join(table, key="user")  # an error

# joins with a global table
assert_type(stream.join(world, key="user"), KStream)
stream.left_join(world, joined, key=lambda user, ms: str(user))
stream.join(world)  # an error
stream.join(world, key="user", name="mine")  # an error
stream.left_join(world, key="user", grace=HOUR, store="waiting")  # an error

# KIP-328: what may be forwarded early cannot be passed where results are final
small = BufferConfig.max_records(10).with_max_bytes(1_000)
Suppressed.until_window_closes(BufferConfig.unbounded())
Suppressed.until_window_closes(small.with_no_bound())
Suppressed.until_window_closes(small.shut_down_when_full())
Suppressed.until_window_closes(small.spill_to_disk_when_full())
Suppressed.until_window_closes(small.shut_down_when_full().with_max_records(20))
Suppressed.until_time_limit(HOUR, small, restart_on_update=True)
Suppressed.until_time_limit(HOUR, small.shut_down_when_full())
Suppressed.until_window_closes(small)  # an error
Suppressed.until_window_closes(BufferConfig.max_bytes(10))  # an error
Suppressed.until_window_closes(small.shut_down_when_full().emit_early_when_full())  # an error
"""


@pytest.mark.slow
def test_the_type_checker_refuses_what_would_be_refused_at_run_time(tmp_path, monkeypatch):
    """Options that do not suit a join's partner, early results where final ones are wanted, and mixed-up kinds.

    With the settings and the cache of ``make check``: the program is checked, but not once more all that it imports.
    """
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    limit = sys.getrecursionlimit()
    try:
        shown, trouble, status = api.run([str(program)])
    finally:
        sys.setrecursionlimit(limit)  # the checker raises it, and tests after this one nest deeply on purpose
    errors = [line for line in shown.splitlines() if ": error: " in line and "program.py:" in line]
    wanted = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# an error")]
    assert [int(line.split("program.py:")[1].split(":")[0]) for line in errors] == wanted, shown + trouble
    assert sum('expected "StrictBufferConfig"' in line for line in errors) == 3
    assert status == 1
