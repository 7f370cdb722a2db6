"""Data that an earlier version has written: this one goes on with it, and ends with what a plain model says.

``data/written_by_ef2d1b0e.tar.xz`` is the folder that the commit of that name has left: it read half of the records
with ``weir run tests.faults.applications:app --until-caught-up`` from its embedded broker, which asked for no login.
Another version's is made in the same way, from a tree of ``git archive COMMIT`` on ``PYTHONPATH``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections import defaultdict
from itertools import islice
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.faults.applications import PARTITIONS, TOPIC, app, records
from tests.faults.outcome import outcome
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings

pytestmark = [pytest.mark.faults, pytest.mark.broker, pytest.mark.spark]

DATA = Path(__file__).parent / "data" / "written_by_ef2d1b0e.tar.xz"
WRITTEN, ALL = 1_000, 2_000
SIZE_MS, GRACE_MS = 10_000, 2_000
LIMIT_S = 300


def weir(settings: Settings, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from weir.pipelines.cli import main; main()", *command, "--dir", str(settings.dir)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def model() -> dict[str, dict]:
    """Totals of users and kinds, and the closed windows, by a plain fold in the order of each partition."""
    users, kinds = defaultdict(lambda: (0, 0)), defaultdict(lambda: (0, 0))
    windows: dict[tuple[str, int], tuple[int, int]] = {}
    stream_times = dict.fromkeys(range(PARTITIONS), 0)
    partition_of = {}
    for partition, key, value, time_ms in records(ALL):
        user, event = key.decode(), json.loads(value)
        partition_of[user] = partition
        total, count = users[user]
        users[user] = (total + event["amount"], count + 1)
        if event["amount"] >= 0:
            total, count = kinds[event["kind"]]
            kinds[event["kind"]] = (total + event["amount"], count + 1)
        stream_times[partition] = max(stream_times[partition], time_ms)
        start_ms = time_ms - time_ms % SIZE_MS
        if start_ms + SIZE_MS + GRACE_MS > stream_times[partition]:
            total, biggest = windows.get((user, start_ms), (0, -(10**9)))
            windows[user, start_ms] = (total + event["amount"], max(biggest, event["amount"]))
    closed = {
        (user, start_ms): found
        for (user, start_ms), found in windows.items()
        if start_ms + SIZE_MS + GRACE_MS <= stream_times[partition_of[user]]
    }
    return {"user_sums": dict(users), "kind_sums": dict(kinds), "closed_windows": closed}


def test_this_version_goes_on_with_what_an_earlier_one_has_written(settings):
    with tarfile.open(DATA) as archive:
        archive.extractall(settings.dir, filter="data")
    with broker_for(settings) as (servers, with_login):
        producer = Producer({**with_login.kafka, "bootstrap.servers": servers})
        for partition, key, value, time_ms in islice(records(ALL), WRITTEN, None):
            producer.produce(TOPIC, value, key, partition=partition, timestamp=time_ms)
        assert producer.flush(60) == 0
        weir(settings, "run", "tests.faults.applications:app", "--until-caught-up")
    weir(settings, "verify", app.id)
    found, wanted = outcome(settings.warehouse / app.id, settings.state_dir / app.id), model()
    for table in ("user_sums", "kind_sums"):
        assert {row[0]: row[1:3] for row in found[table]} == wanted[table]
    closed = {(row[0], start_of(row)): row[3:5] for row in found["closed_windows"]}
    assert len(found["closed_windows"]) == len(closed)
    assert closed == wanted["closed_windows"]


def start_of(row: tuple) -> int:
    return int(row[1].timestamp() * 1000)
