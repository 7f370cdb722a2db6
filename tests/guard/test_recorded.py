"""Which counts differ from the recorded ones by more than they may."""

from __future__ import annotations

import pytest

from tests.guard import recorded as module
from tests.guard.recorded import Recorded

RULES = {"above": {"bytes": 0.03}, "below": 0.05}


def lines(was: dict[str, int], now: dict[str, int], python: str = module.PYTHON) -> list[str]:
    recorded = Recorded(**RULES, python=python, counts={"job": {"epoch": was, "commit": {"syncs": 8}}})
    return recorded.differences("job", {"epoch": now, "commit": {"syncs": 8}})


@pytest.mark.parametrize(
    ("name", "was", "now", "said"),
    [
        ("syncs", 4, 4, []),
        ("syncs", 4, 5, ["job, epoch: syncs was 4 and is 5, which is more"]),
        ("syncs", 0, 1, ["job, epoch: syncs was 0 and is 1, which is more"]),
        ("syncs", 4, 3, ["job, epoch: syncs was 4 and is 3, which is better: record it"]),
        ("syncs", 4, 0, ["job, epoch: syncs was 4 and is 0, which is better: record it"]),
        ("polars_calls", 1_000, 1_001, ["job, epoch: polars_calls was 1,000 and is 1,001, which is more"]),
        ("polars_calls", 1_000, 950, []),
        (
            "polars_calls",
            1_000,
            949,
            ["job, epoch: polars_calls was 1,000 and is 949, which is better: record it"],
        ),
        ("bytes_map", 1_000, 1_030, []),
        ("bytes_map", 1_000, 1_031, ["job, epoch: bytes_map was 1,000 and is 1,031, which is more by more than 3 %"]),
    ],
)
def test_a_count_that_is_above_or_far_below_is_named(name, was, now, said):
    assert lines({name: was} if was else {}, {name: now} if now else {}) == said


def test_what_depends_on_the_version_of_python_is_compared_by_the_one_that_recorded_it():
    was = {"allocations": 10, "python_calls": 10, "syncs": 4}
    now = {"allocations": 90, "python_calls": 90, "syncs": 5}
    assert len(lines(was, now)) == 3
    assert lines(was, now, python="3.9") == ["job, epoch: syncs was 4 and is 5, which is more"]


def test_the_file_is_read_as_it_was_written(tmp_path):
    phases = {"epoch": {"syncs": 4, "allocations": 20_000}, "commit": {"syncs": 8}}
    written = Recorded(**RULES, python="3.11", counts={"b": phases, "a": phases})
    (tmp_path / "counts.toml").write_text(written.text())
    assert Recorded.read(tmp_path / "counts.toml") == written
    assert written.text().index("[a.epoch]") < written.text().index("[b.epoch]")
