"""What epochs and commits take is what is recorded, and does not grow with what is there already.

Each test counts in a Python of its own, as a contributor does.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guard.jobs import JOBS
from tests.guard.recorded import RECORDED, Recorded

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture
def guard(tmp_path):
    """Calls it with arguments; its exit code and what it prints."""

    def call(*arguments: str) -> tuple[int, str]:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.guard", *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return ran.returncode, ran.stdout

    return call


def test_an_epoch_and_a_commit_of_each_job_take_what_is_recorded(guard):
    code, said = guard()
    assert code == 0, said


def test_ten_times_the_keys_commits_and_tasks_take_at_most_1_3_times_as_much(guard):
    code, said = guard("--growth")
    assert code == 0, said


def test_a_count_that_differs_is_named_and_recorded_by_the_command_that_is_printed(guard, tmp_path):
    path = shutil.copy(RECORDED, tmp_path / "counts.toml")
    recorded = Recorded.read(path)
    epoch = recorded.counts["sum_per_key"]["epoch"]
    syncs, calls = epoch["syncs"], epoch["polars_calls"]
    epoch["syncs"], epoch["polars_calls"] = syncs - 1, 2 * calls
    path.write_text(recorded.text())
    code, said = guard("sum_per_key", "--counts", str(path))
    assert code == 1
    assert f"sum_per_key, epoch: syncs was {syncs - 1} and is {syncs}, which is more\n" in said
    assert re.search(
        rf"sum_per_key, epoch: polars_calls was {2 * calls:,} and is [\d,]+, which is better: record", said
    )
    _, _, _, *arguments = shlex.split(re.search("`(python -m tests.guard .*?)`", said)[1])
    code, said = guard(*arguments, "sum_per_key", "--counts", str(path))
    assert code == 0, said
    as_it_was, now = Recorded.read(), Recorded.read(path)
    assert as_it_was.differences("sum_per_key", now.counts["sum_per_key"]) == []
    assert now.counts["sum_per_key"]["epoch"]["syncs"] == syncs
    assert {**now.counts, "sum_per_key": {}} == {**as_it_was.counts, "sum_per_key": {}}


def test_the_lines_that_a_count_is_of_are_printed(guard):
    code, said = guard("sum_per_key", "--where", "syncs")
    assert code == 0
    places = re.findall(r"^sum_per_key, (epoch|commit): +([\d,]+) (\S.*)$", said, re.MULTILINE)
    for phase in ("epoch", "commit"):
        found = sum(int(count) for of, count, _ in places if of == phase)
        assert found == Recorded.read().counts["sum_per_key"][phase]["syncs"]
    assert all(place.startswith("state/") for _, _, place in places)


def test_the_file_is_as_it_is_written_and_has_all_jobs():
    recorded = Recorded.read()
    assert RECORDED.read_text() == recorded.text()
    assert list(recorded.counts) == sorted(JOBS)
