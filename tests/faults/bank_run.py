"""``weir run`` of the bank in a folder with its embedded broker, what can be killed of it, and what it has written."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
import psutil

from tests.faults.bank import PARTITIONS, TRANSFERS, VISITS, Truth, app
from tests.faults.traffic import Traffic
from tests.waiting import wait_for
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.broker import broker_for
from weir.infra.kafka.files import BrokerFiles
from weir.infra.settings import Settings
from weir.state.commit.log import newest_commit
from weir.state.storage.contract import Folder
from weir.state.storage.places import folder_at, is_table, storage_options, table_at

REFERENCE = "tests.faults.bank:app"
CATCH_UP_LIMIT_S, END_LIMIT_S = 300.0, 120.0
VICTIMS = ("driver", "worker", "broker", "spark")


class BankRun:
    """The folder of one bank, and its driver of the moment."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self.settings, self.tables = settings, folder_at(settings.warehouse) / app.id
        self.kills = dict.fromkeys(VICTIMS, 0)
        self.driver: subprocess.Popen[bytes] | None = None
        self.lost_spark = False
        """Whether this driver has to do without Spark: it goes on with the workers that it has, or ends."""
        self._log = log

    def start(
        self, *flags: str, by: Sequence[str] = (sys.executable, "-c", "from weir.pipelines.cli import main; main()")
    ) -> subprocess.Popen[bytes]:
        """Start a driver as from a terminal, or ``by`` another program; its output is appended to the log."""
        command = ["run", REFERENCE, "--dir", str(self.settings.dir), "--set", f"slots={self.settings.slots}", *flags]
        self.lost_spark = False
        with self._log.open("ab") as log:
            self.driver = subprocess.Popen([*by, *command], stdout=log, stderr=log)
        return self.driver

    def kill(self, victim: str, rng: random.Random) -> None:
        """SIGKILL one process of this kind, if there is one at the moment."""
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            pid = self._pid(victim, rng)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                self.kills[victim] += 1
                self.lost_spark |= victim == "spark"

    def output(self) -> str:
        """What the drivers have said, on one line."""
        return " ".join(self._log.read_text(encoding="utf-8", errors="replace").split())

    def end(self) -> None:
        """Kill what is left of the driver."""
        if self.driver is not None and self.driver.poll() is None:
            self.driver.kill()
            self.driver.wait()

    def stop(self) -> None:
        """Ctrl-C, which ends with a commit and in good order."""
        assert self.driver is not None
        self.driver.send_signal(signal.SIGINT)
        assert self.driver.wait(END_LIMIT_S) == 0, self.output()[-3000:]

    def wait_until_equal(self, truth: Truth) -> None:
        """Until the running driver has written all of it; fails with the first difference."""
        try:
            wait_for(lambda: self.difference(truth) == "", "the outputs are complete", CATCH_UP_LIMIT_S, every_s=1.0)
        except AssertionError:
            raise AssertionError(f"{self.difference(truth)}\n{self.output()[-3000:]}") from None

    def difference(self, truth: Truth) -> str:
        """How the outputs differ from the truth, in words; "" if they are equal."""
        if not is_table(self.tables / "counters") or newest_commit(self.settings.warehouse, app.id) is None:
            return "there are no outputs yet"
        balances = {row["key"]: (row["balance"], row["postings"]) for row in newest(self.tables / "balances", "key")}
        visits = {row["page"]: row["visits"] for row in newest(self.tables / "counters", "page")}
        journal = self.rows("journal").sort("number").select("number", "source", "target", "amount").rows()
        for name, found, wanted in (
            ("journal", dict(enumerate(journal)), dict(enumerate(truth.journal()))),
            ("balances", balances, truth.balances()),
            ("visits", visits, dict(truth.visits)),
        ):
            if found != wanted:
                keys = [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]
                return (
                    f"{name}: {len(found)} rows for {len(wanted)}, {len(keys)} differ, such as {keys[0]!r}: "
                    f"{found.get(keys[0])} for {wanted.get(keys[0])}"
                )
        return "" if sum(balance for balance, _ in balances.values()) == 0 else "the balances do not add up to zero"

    def check_under_way(self, truth: Truth, given: int) -> None:
        """What holds at every moment: no transfer is there twice or other than it was ``given`` (the greatest number),
        and every count that was ever written is the number of its newest visit."""
        if not is_table(self.tables / "counters"):
            return
        journal, counters = self.rows("journal"), self.rows("counters")
        assert journal["number"].is_unique().all()
        assert journal["number"].max() is None or journal["number"].max() <= given
        known = [
            (row, truth.transfers.get(row[0])) for row in journal.select("number", "source", "target", "amount").rows()
        ]
        assert all(each is None or row == (each.number, each.source, each.target, each.amount) for row, each in known)
        assert (counters["visits"] == counters["newest"]).all()

    def rows(self, table: str) -> pl.DataFrame:
        folder = self.tables / table
        return pl.read_delta(folder.uri, storage_options=storage_options(folder))

    def _pid(self, victim: str, rng: random.Random) -> int | None:
        assert self.driver is not None
        if victim == "broker":
            found = self._broker_pid()
            return found if found is not None and psutil.pid_exists(found) else None
        if victim == "driver":
            return self.driver.pid
        name = "java" if victim == "spark" else "python"  # and no shell, which starts Spark
        children = psutil.Process(self.driver.pid).children(recursive=True)
        found = [child.pid for child in children if child.name().startswith(name)]
        return rng.choice(found) if found else None

    def _broker_pid(self) -> int | None:
        return BrokerFiles(self.settings.kafka_dir).read_status().get("kafka_pid")


@contextlib.contextmanager
def bank(settings: Settings, log: Path, *, seed: int, per_second: int) -> Iterator[tuple[BankRun, Traffic]]:
    """A bank without a driver, and its traffic, which has not begun; no driver is left after the block."""
    with broker_for(settings) as (servers, with_login):
        admin = KafkaAdmin(servers, with_login.kafka)
        for topic in (TRANSFERS, VISITS):
            admin.create_topic(topic, PARTITIONS)
        run = BankRun(settings, log)
        traffic = Traffic({**with_login.kafka, "bootstrap.servers": servers}, seed=seed, per_second=per_second)
        try:
            yield run, traffic
        finally:
            run.end()
            traffic.abandon()


def newest(table: Folder, key: str) -> list[dict[str, object]]:
    """The newest row of each key, as delta-rs reads the table."""
    frame = pl.DataFrame(table_at(table).to_pyarrow_table())
    frame = frame.sort("_epoch", "_seq", maintain_order=True).unique(key, keep="last")
    return frame.filter(~pl.col("_deleted")).to_dicts()
