"""Worlds that live through faults, one a seed; ``make simulate`` tries more of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS

SECONDS = float(os.environ.get("SIMULATE_SECONDS", "25"))
"""How long new worlds are begun."""
SOON_FOUND = ("epochs from one", "same generation", "unfenced")
TRIED = list(MUTANTS) if "SIMULATE_MUTANTS" in os.environ else SOON_FOUND
"""`make faults` tries all of them."""


def simulate(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command behind ``make simulate``."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *map(str, arguments)], capture_output=True, text=True
    )


@pytest.mark.slow
def test_worlds_with_faults_end_as_the_model_says_and_break_no_rule():
    found = simulate("--seconds", SECONDS, "--seeds", 100_000, "--jobs", 1)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_a_seed_has_the_same_history_each_time_to_the_byte():
    first, second = simulate("--seed", 47), simulate("--seed", 47)
    assert first.stdout == second.stdout
    assert len(first.stdout.splitlines()) > 100


@pytest.mark.faults
@pytest.mark.parametrize("mutant", TRIED)
def test_a_mutant_is_found(mutant):
    found = simulate("--mutant", mutant, "--seeds", 2_000)
    noticed = r"^seed \d+: (BrokenInvariantError|DifferenceError|EndlessError|WorldError)"
    assert re.search(noticed, found.stdout, re.MULTILINE), f"no seed notices that {MUTANTS[mutant].what}"


def test_the_page_of_the_protocol_lists_all_mutants():
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    section = page.partition("## Simulated worlds")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| (.+?) \| (\d+|Backfill \d+) \| (.+?) \|$", section, re.MULTILINE)
    assert listed == [(name, str(mutant.rule), mutant.what) for name, mutant in MUTANTS.items()]
