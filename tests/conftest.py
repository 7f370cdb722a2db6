"""What suites share: one broker and one Spark session per run, topics named after their test, no leftovers."""

from __future__ import annotations

import functools
import gc
import os
import re
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest
import requests
import typer.testing

# As in the workers of a run; with more, each small frame waits for another thread to wake up: a quarter more CPU.
os.environ.setdefault("POLARS_MAX_THREADS", "1")
from hypothesis import settings as hypothesis_settings

from tests import forked
from tests.azure_server import azure_server, make_container
from tests.examples import examples
from tests.kafka_server import kafka_server
from tests.s3_server import s3_server
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.settings import Settings

os.umask(0o022)  # as on most systems, whatever the shell has

TESTS = Path(__file__).parent
WHOLE_RUNS = [
    TESTS / folder
    for folder in (
        "bench",
        "fuzz",
        "infra/test_columns.py",
        "infra/test_control_database.py",
        "orchestration/checks",
        "orchestration/examples",
        "orchestration/jobs",
        "orchestration/sensors",
        "orchestration/test_unnamed_stores.py",
        "pipelines/backfill",
        "pipelines/cli/test_advice.py",
        "pipelines/cli/test_changed_programs.py",
        "pipelines/cli/test_commands.py",
        "pipelines/cli/test_compact.py",
        "pipelines/cli/test_dead_letters.py",
        "pipelines/cli/test_deliveries.py",
        "pipelines/cli/test_global_tables_in_backfills.py",
        "pipelines/cli/test_lost_tables.py",
        "pipelines/cli/test_object_store.py",
        "pipelines/cli/test_plan.py",
        "pipelines/cli/test_quarantine.py",
        "pipelines/cli/test_query.py",
        "pipelines/cli/test_refused_backfills.py",
        "pipelines/cli/test_refused_commands.py",
        "pipelines/cli/test_repartition.py",
        "pipelines/cli/test_reset.py",
        "pipelines/cli/test_status.py",
        "pipelines/cli/test_tasks.py",
        "pipelines/cli/test_top.py",
        "pipelines/cli/test_unwritable.py",
        "pipelines/examples",
        "pipelines/migrate",
        "pipelines/operations",
        "pipelines/order",
        "pipelines/processors/test_batches_in_runs.py",
        "pipelines/processors/test_batching.py",
        "pipelines/processors/test_processors_in_runs.py",
        "pipelines/processors/test_shared_stores_in_runs.py",
        "pipelines/processors/test_stores_in_runs.py",
        "pipelines/publishing",
        "pipelines/queries",
        "pipelines/repartitioning",
        "pipelines/serdes/test_poison.py",
        "pipelines/sinks/test_newest_updates.py",
        "pipelines/spark",
        "pipelines/tasks/test_attempts.py",
        "pipelines/tasks/test_partitioned_outputs.py",
        "pipelines/tasks/test_replay.py",
        "pipelines/tasks/test_retry.py",
        "pipelines/test_committed_input.py",
        "pipelines/test_state_reader.py",
        "state/changelog",
        "state/commit/test_checkpoints.py",
        "state/commit/test_damage.py",
        "state/commit/test_protocol.py",
        "state/engine/test_backing.py",
        "state/engine/test_task_store.py",
        "state/stores/test_codec.py",
    )
]
"""Tests that run an application with its commits, write and restore a whole task, start a Python of their own, or try
many random values: each quick, together not."""
LEFTOVER_LIMIT_S = 20.0
MANY_FILES = 200
# Java starts more often here than it computes: without its second compiler, a broker that starts and ends takes 2.6 s
# of CPU instead of 4.3.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
# A quarter of a second each time that a test runs a command in its own process.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]
# Commits wait for the disk most of all: in memory the tests take a quarter less time.
MEMORY, ENOUGH_BYTES = Path("/dev/shm"), 8 << 30
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ENOUGH_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
# A busy machine may halt for longer than any example takes.
hypothesis_settings.register_profile("weir", deadline=None, max_examples=examples(100))
hypothesis_settings.load_profile("weir")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that share a session of Spark come one after another, in the end: it ends for a context."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in WHOLE_RUNS):
            item.add_marker(pytest.mark.slow)
    sharing = {item.path for item in items if {"shared_spark", "session"} <= set(getattr(item, "fixturenames", ()))}
    items.sort(key=lambda item: item.path in sharing)


def pytest_collection_finish() -> None:
    """What imports and collection have left, most of a million objects, is never looked through for garbage: each run
    within this process would do so as it starts, for half a second. What tests make is looked through seldom, as in
    workers."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    if (runner := sys.modules.get("weir.pipelines.spark.runner")) is not None:
        setattr(runner, "short_collections", nullcontext)  # noqa: B010  # it unfreezes them in the end


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the run when a process that it started, or one that works in its temporary folder, outlives it."""
    base = str(tmp_path_factory.getbasetemp())
    before = set(psutil.pids())
    yield
    forked.stop()
    until = time.monotonic() + LEFTOVER_LIMIT_S
    while (left := _left(base, before)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left, "processes outlived the tests: " + "; ".join(left)


@pytest.fixture(scope="module", autouse=True)
def garbage_is_collected() -> Iterator[None]:
    """Connections in cycles keep files open: without this, a process has more than 1,024 after half of the tests."""
    yield
    if len(os.listdir("/proc/self/fd")) > MANY_FILES:
        gc.collect()


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """A server that speaks S3."""
    with s3_server() as url:
        yield url


@pytest.fixture
def s3_bucket(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a bucket of the test's own; the environment says how to reach it, with a secret of its own, too."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": f"hidden-store-{uuid.uuid4().hex}",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_url,
    }.items():
        monkeypatch.setenv(name, value)
    bucket = f"test-{uuid.uuid4().hex}"
    requests.put(f"{s3_url}/{bucket}", timeout=10).raise_for_status()
    return f"s3://{bucket}"


@pytest.fixture(scope="session")
def azure_url() -> Iterator[str]:
    """A server that speaks the protocol of Azure's blobs; it has to be installed."""
    with azure_server() as url:
        yield url


@pytest.fixture
def azure_container(azure_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a container of the test's own; the environment says how to reach it."""
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", azure_url)
    container = f"test-{uuid.uuid4().hex}"
    make_container(azure_url, container)
    return f"az://{container}"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a real broker, running until the tests end: a Kafka of one's own, without a login."""
    with kafka_server(tmp_path_factory.mktemp("broker")) as bootstrap_servers:
        yield bootstrap_servers


@pytest.fixture(scope="session")
def kafka_admin(broker: str) -> KafkaAdmin:
    return KafkaAdmin(broker)


@pytest.fixture
def topic(kafka_admin: KafkaAdmin, request: pytest.FixtureRequest) -> Callable[..., str]:
    """``topic(partitions=1, **config)`` creates a topic named after the test and returns its name."""

    def create(partitions: int = 1, **config: str) -> str:
        name = f"{re.sub(r'[^A-Za-z0-9_]+', '_', request.node.name)[:80]}-{uuid.uuid4().hex[:8]}"
        kafka_admin.create_topic(name, partitions, {key.replace("_", "."): value for key, value in config.items()})
        return name

    return create


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than ``tmp_path``."""
    device = tmp_path.stat().st_dev
    base = next(base for base in (MEMORY, Path(tempfile.gettempdir()), TESTS) if base.stat().st_dev != device)
    with tempfile.TemporaryDirectory(dir=base) as folder:
        yield Path(folder)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a fresh folder with two slots, whatever the environment says."""
    return Settings(dir=tmp_path / "weir", slots=2)


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    from tests.shared_spark import SharedSpark

    shared = SharedSpark(lambda: Settings(dir=tmp_path_factory.mktemp("spark"), slots=2))
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def spark(shared_spark):  # type: ignore[no-untyped-def]
    """A context with two slots, as a driver has it, which other modules have used, too."""
    return shared_spark.context()


@pytest.fixture(scope="module")
def session(shared_spark):  # type: ignore[no-untyped-def]
    """A session that reads Delta tables by SQL, in which other modules have read, too."""
    return shared_spark.session()


def _left(base: str, before: set[int]) -> list[str]:
    """Descendants of this process, and new processes with ``base`` in their command line."""
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        pid, command = process.info["pid"], " ".join(process.info["cmdline"] or ())
        is_ours = pid in children or (pid not in before and base in command)
        if is_ours and pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(f"{pid} {command[:160]}")
    return found
