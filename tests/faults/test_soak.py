"""A soak: traffic, ``weir run`` with an embedded broker, and SIGKILL for any of its processes, over and over.

The checker knows the right results without running the program (``tests/faults/bank.py``), reads the outputs with
polars and delta-rs, and believes only what the broker has acknowledged. ``SOAK_SECONDS`` says for how long; ``make
faults`` soaks for 20 minutes.
"""

from __future__ import annotations

import os
import random
import time

import pytest
from typer.testing import CliRunner

from tests.faults.bank import app
from tests.faults.bank_run import END_LIMIT_S, BankRun, bank
from tests.faults.traffic import Traffic
from tests.waiting import wait_for
from weir.pipelines.cli.app import app as weir
from weir.state.commit.log import newest_commit

pytestmark = [pytest.mark.faults, pytest.mark.broker, pytest.mark.spark]

SOAK_S = float(os.environ.get("SOAK_SECONDS", 40))
ROUND_S = 120.0
SHORT_S, LONG_S = (0.2, 4.0), (8.0, 25.0)
"""Between two kills: so that one comes while the last is not over, or long enough for a start and commits. After that
of a worker it is long: Spark gives one up that dies four times before it is ready."""
PER_SECOND, BOUNCES = 300, 5
WEIGHTS = {"driver": 3, "worker": 6, "broker": 4, "spark": 1}
SEED = int(os.environ.get("SOAK_SEED", 16))


def test_no_transfer_and_no_visit_is_lost_or_counted_twice_whatever_is_killed(settings, tmp_path, capsys):
    rng, ends = random.Random(SEED), time.monotonic() + SOAK_S
    with bank(settings, tmp_path / "run.log", seed=SEED, per_second=PER_SECOND) as (run, traffic):
        lives = 0
        while time.monotonic() < ends:
            lives += one_round(run, traffic, rng, min(ends, time.monotonic() + ROUND_S))
            with capsys.disabled():
                print(f"\nsoak: {summary(run, traffic, lives)}", flush=True)
        run.stop()
        assert run.start("--until-caught-up").wait(END_LIMIT_S) == 0, run.output()[-3000:]
        assert run.difference(traffic.truth) == ""
        verified = CliRunner().invoke(weir, ["verify", app.id, "--dir", str(settings.dir)])
        assert verified.exit_code == 0, verified.output


def test_a_run_outlives_its_broker_however_often_that_is_killed(settings, tmp_path):
    """More often than the supervisor starts a Kafka again."""
    with bank(settings, tmp_path / "run.log", seed=SEED, per_second=100) as (run, traffic):
        driver = run.start()
        for bounce in range(BOUNCES + 1):
            traffic.start()
            wait_for(lambda before=traffic.given: traffic.given > before + 100, "there is traffic")
            if bounce < BOUNCES:
                run.kill("broker", random.Random(bounce))
            traffic.stop()
            run.wait_until_equal(traffic.truth)
            assert driver.poll() is None, run.output()[-3000:]
        assert run.kills["broker"] == BOUNCES
        run.stop()


def one_round(run: BankRun, traffic: Traffic, rng: random.Random, until: float) -> int:
    """Traffic and kills until then; at last peace, in which everything arrives. Returns how many drivers there were."""
    lives, victim = 1, ""
    if run.driver is None or run.driver.poll() is not None:
        run.start()
    traffic.start()
    while time.monotonic() < until:
        time.sleep(rng.uniform(*(LONG_S if victim == "worker" else rng.choice((SHORT_S, LONG_S)))))
        (victim,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        run.kill(victim, rng)
        if victim == "driver":
            run.driver.wait()
        if (code := run.driver.poll()) is not None:
            assert code == -9 or run.lost_spark, f"the driver ended with code {code}: {run.output()[-3000:]}"
            run.start()
            lives += 1
        run.check_under_way(traffic.truth, traffic.given)
    traffic.stop()
    if run.lost_spark:
        run.end()
        run.start()
        lives += 1
    run.wait_until_equal(traffic.truth)
    return lives


def summary(run: BankRun, traffic: Traffic, lives: int) -> str:
    commit = newest_commit(run.settings.warehouse, app.id)
    kills = ", ".join(f"{victim} {count}" for victim, count in run.kills.items())
    return (
        f"{len(traffic.truth.transfers):,} transfers, {traffic.truth.visits.total():,} visits; kills: {kills}; "
        f"{lives} drivers, generation {commit.generation}, epoch {commit.epoch}; equal"
    )
