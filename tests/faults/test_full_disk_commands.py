"""Commands on a disk of a few megabytes that is really full, each a process of its own: they wait, or end with a
sentence that names the disk, what is free there, what is needed and the way out; nothing is lost."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kafka_server import kafka_server
from tests.small_disk import SmallDisk, small_disk
from tests.waiting import wait_for
from weir.infra.kafka.admin import KafkaAdmin
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.faults, pytest.mark.broker, pytest.mark.spark]

REFERENCE, TOPIC, PARTITIONS = "tests.integration.applications:visits", "visits", 2
DISK_MB, LIMIT_S = 300, 240.0
SENTENCE = re.compile(
    r"the disk of \S+ has [\d,]+ bytes free, (but [\d,]+ may be needed|which is not enough).*free some space there"
)


@dataclass(frozen=True)
class Here:
    """A folder on a small disk."""

    disk: SmallDisk
    servers: str
    log: Path
    produced: Counter[str] = field(default_factory=Counter)
    """Visits by user."""

    def weir(self, *command: str) -> tuple[int, str]:
        """Exit code and output on one line."""
        with self.start(*command) as process:
            code = process.wait(LIMIT_S)
        return code, self.said()

    @contextmanager
    def start(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        brokers = ("--bootstrap-servers", self.servers) if command[0] in ("run", "backfill") else ()
        arguments = [*command, "--dir", str(self.disk.folder), *brokers]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", "from weir.pipelines.cli import main; main()", *arguments],
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def run(self) -> tuple[int, str]:
        return self.weir("run", REFERENCE, "--until-caught-up")

    def said(self) -> str:
        return " ".join(self.log.read_text(errors="replace").split())

    def produce(self, user: str, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for partition in range(PARTITIONS):
            for number in range(count):
                producer.produce(TOPIC, b"%d" % number, f"{user}{partition}".encode(), partition=partition)
            self.produced[f"{user}{partition}"] += count
        assert producer.flush(10) == 0

    def totals(self) -> dict[str, int]:
        rows = read_table(self.disk.folder / "warehouse" / "visits" / "totals")
        return dict(rows.select("user", "n").iter_rows())


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> Iterator[Here]:
    """Where visits were counted in several commits; each test adds some."""
    base = tmp_path_factory.mktemp("full-disk")
    with small_disk(base / "weir", DISK_MB) as disk, kafka_server(base / "kafka") as servers:
        disk.folder.chmod(0o700)  # programs are not imported from where others can write
        KafkaAdmin(servers).create_topic(TOPIC, PARTITIONS)
        here = Here(disk, servers, base / "said.log")
        for _ in range(2):
            here.produce("a", 50)
            code, said = here.run()
            assert code == 0, said
        yield here


@pytest.fixture
def here(started) -> Iterator[Here]:
    """The same place, with room on its disk."""
    yield started
    started.disk.clear()


@pytest.mark.parametrize(
    "leave", [pytest.param(0, id="full"), pytest.param(8 << 20, id="all but full", marks=pytest.mark.long)]
)
def test_a_run_waits_for_its_start_and_the_status_says_so(here, leave):
    here.produce("b", 20)
    here.disk.fill(leave)
    with here.start("run", REFERENCE, "--until-caught-up") as process:
        wait_for(lambda: SENTENCE.search(here.said()) or process.poll() is not None, "it says why it waits", LIMIT_S)
        assert process.poll() is None, here.said()
        status = subprocess.run(
            [sys.executable, "-c", "from weir.pipelines.cli import main; main()", "status", "--dir", here.disk.folder],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert SENTENCE.search(" ".join((status.stdout + status.stderr).split())), status.stdout + status.stderr
        here.disk.clear()
        assert process.wait(LIMIT_S) == 0, here.said()
    assert here.totals() == here.produced


def test_a_compaction_without_room_ends_with_a_sentence_and_is_repeated(here):
    here.disk.fill()
    code, said = here.weir("compact", "visits")
    assert (code, bool(SENTENCE.search(said))) == (1, True), said
    assert here.totals() == here.produced
    here.disk.clear()
    code, said = here.weir("compact", "visits")
    assert code == 0, said
    here.produce("b", 20)
    assert here.run()[0] == 0
    assert here.totals() == here.produced


def test_a_backfill_without_room_waits_and_goes_on(here):
    here.disk.fill()
    with here.start("backfill", "run", "visits", "--everything") as process:
        wait_for(lambda: SENTENCE.search(here.said()) or process.poll() is not None, "it says why it waits", LIMIT_S)
        assert process.poll() is None, here.said()
        here.disk.clear()
        assert process.wait(LIMIT_S) == 0, here.said()
    assert here.totals() == here.produced
    code, said = here.weir("backfill", "run", "visits", "--everything", "--swap", "--yes")
    assert code == 0, said
    assert here.totals() == here.produced
