"""A world: one program over topics that fill, drivers one after another or at once, faults, and then peace.

Once faults have ceased, a last driver has to read everything within so many steps; then outputs, stores and changelogs
are compared with the model.
"""

from __future__ import annotations

import logging
import re
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from unittest.mock import patch

from deltalake.exceptions import DeltaError

from tests.pipelines.order import building
from tests.pipelines.order.running import of_model
from tests.simulation.backfills import FOLDER, Backfills
from tests.simulation.brokers import Brokers
from tests.simulation.faults import DONE, READS, Faults, error_at, is_survived
from tests.simulation.invariants import Invariants
from tests.simulation.outcome import require_equal
from tests.simulation.place import SimulatedPlace
from tests.simulation.programs import case_of
from tests.simulation.publishers import SimulatedPublishers, is_publisher
from tests.simulation.repairs import Repairs
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.sinks import Sinks
from tests.simulation.storage import PageCache, spoil
from tests.simulation.stores import Stores
from tests.simulation.substitutes import Event, on_disk, substitutes
from weir.infra.control.rows import FREEST_SLOT
from weir.pipelines.spark import spread
from weir.pipelines.spark.errors import CommitOutOfSpaceError, OffsetsLostError, RunError
from weir.pipelines.spark.progress import RunSummary
from weir.pipelines.spark.publishing import CAUGHT_UP_LIMIT_S, STOP_LIMIT_S
from weir.state.changelog.compaction import Compaction
from weir.state.errors import FencedError, StateError
from weir.state.types import TopicPartition

MOST_STEPS = 20_000
"""Within so many steps a world without faults ends."""
FAULTY_STEPS = 3_000
"""After so many steps nobody waits for a driver that faults may keep from ending."""
READING = nullcontext()
"""Around a call that does not fail, where nobody else may run."""
LAST_TRIES = 20
"""How many drivers may be fenced by earlier ones that wake up once faults have ceased."""


def _are_alive(processes: list[Process]) -> bool:
    """Whether any of them is."""
    return any(process.is_alive for process in processes)


class WorldError(AssertionError):
    """A driver that nobody had replaced ended in an error."""


class World:
    """``World(seed, folder).run()`` raises what is wrong; ``history`` says what happened."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.program, self.data = case_of(seed)
        self.rng = Random(seed)
        self.scheduler = Scheduler(self.rng)
        self.scheduler.on_point = self._on_point
        self.faults = Faults.drawn(self.rng)
        self.sinks = Sinks(self.scheduler)
        self._left = 0
        """How many faults may still happen to the newest driver."""
        self.stores = Stores(self.scheduler)
        brokers = Brokers.of(self.program, self.data, self.rng)
        self.place = SimulatedPlace(
            building.application(
                self.program,
                commit_interval=timedelta(milliseconds=self.rng.choice([1, 100, 1_000, 10_000])),
                max_skew=self.rng.choice([None, None, timedelta(milliseconds=10)]),
                beside=self.sinks.add,
                **self.sinks.settings,
            ),
            brokers,
            folder,
            max_records=self.rng.choice([2, 4, 8, 1_000]),
            snapshot_rows=self.rng.choice([0, 0, 5]),
            slots_count=self.rng.choice([1, 1, 2]),
            outbox_max_bytes=self.sinks.most_waiting_bytes,
            scheduler=self.scheduler,
            stores=self.stores,
        )
        self._is_restless = self.rng.random() < 0.3
        """Whether tasks move to other slots as soon as these have a little less work."""
        self.brokers = brokers
        self.invariants = Invariants(self.place, brokers)
        self.disk = PageCache(self.place.warehouse, folder / "kept")
        self.backfills = Backfills(self.place, self.invariants, self.rng, self._drivers_alive)
        self.repairs = Repairs(self.place, self.invariants, self.rng)
        self.boots = 1
        """How often the power has come."""
        self._drivers: list[Process] = []
        self._outside: list[Process] = []
        """What goes on without the power of the machines that compute."""
        self._operators: list[Process] = []
        """Those of them who make backfills, and who check stores."""

    @property
    def history(self) -> list[str]:
        """Everything that has happened, a line each."""
        head = [f"seed {self.seed}", *(f"s{place} {step}" for place, step in enumerate(self.program.steps))]
        head += [f"topics {self.program.topics}", str(self.faults), str(self.sinks)]
        return [self.without_chance(line) for line in (*head, *self.scheduler.history)]

    def without_chance(self, text: str) -> str:
        """``text`` without what differs from run to run: the name of the world's folder, and the room on its disk."""
        return re.sub(r"[\d,]+ bytes free", "some bytes free", text.replace(str(self.place.folder), "WORLD"))

    def run(self) -> None:
        """Live through it."""
        logging.getLogger("weir").setLevel(logging.CRITICAL)
        try:
            with (
                substitutes(self.scheduler, Random(self.seed), lambda: f"boot {self.boots}"),
                on_disk(self.disk.fsync if self.faults.blackouts else lambda descriptor: None, self._calling),
                self.stores.substituted(),
                self._moving(),
                self.invariants.watching(),
                self.repairs.watching(),
                self.sinks.watching(self.place, self.invariants),
            ):
                self._run()
                self.invariants.require_whole()
                self.stores.close_all()
                wanted = of_model(self.program, self.data)
                require_equal(wanted, self.program, self.place)
                self.sinks.require_whole(wanted, self.program)
                self.repairs.require_restored()
                if self.boots == 1:  # else the disk may have forgotten that they were removed
                    self.backfills.require_removed()
        finally:
            self.scheduler.end()
            self.stores.close_all()

    @contextmanager
    def _moving(self) -> Iterator[None]:
        if not self._is_restless:
            yield
            return
        with patch.multiple(spread, BUSY_S=0.0, GAIN=1e-6), patch("weir.pipelines.spark.driver.EVEN_EVERY_S", 0.0):
            yield

    def _run(self) -> None:
        self._outside = [self.scheduler.spawn("topics", self._fill)]
        beside = []
        if self.rng.random() < 0.2:
            beside.append(self.scheduler.spawn("compaction", self._compact))
        if self.rng.random() < 0.5:
            self._outside.append(self.scheduler.spawn("requests", self._ask))
        if self.rng.random() < 0.2:
            self._outside.append(self.scheduler.spawn("brokers", self._go_wrong))
        elif not self.sinks.are_there and self.rng.random() < 0.25:  # to which a swap tells nothing
            self._operators.append(self.scheduler.spawn("backfills", self.backfills.live))
        if not self.place.snapshot_rows and self.rng.random() < 0.3:
            self.repairs.is_on = True
            self._operators.append(self.scheduler.spawn("check", self.repairs.live))
        self._outside += self._operators
        if self.sinks.are_there:
            self._outside.append(self.scheduler.spawn("person", self.sinks.decide))
        beside += self._outside
        for _ in range(self.faults.drivers):
            self._left = self.faults.most
            driver = self._begin_driver(is_last=False)
            overlaps = self.rng.random() < self.faults.overlaps
            steps = self.scheduler.steps + (self.rng.randrange(300) if overlaps else FAULTY_STEPS)
            self._until(partial(self._may_go_on, driver, steps, overlaps=overlaps))
            self._between()
        self._left = 0
        if self.sinks.most_waiting_bytes is not None:  # else nobody waits for them
            self.sinks.outside.heal()
        others = [process for process in self._outside if process not in self._operators]
        self._until(lambda: bool(self.brokers.wrong) or not _are_alive(others))
        if self.brokers.wrong:
            self._begin_driver(is_last=False)
        self._until(lambda: not _are_alive(others))
        if _are_alive(self._operators):  # who may wait for a first commit
            self._begin_driver(is_last=True)
        self._until(lambda: not _are_alive(self._operators))
        for _ in range(LAST_TRIES):
            driver = self._begin_driver(is_last=True)
            self._until(lambda: not _are_alive(self._drivers))
            if driver.error is None and driver.result.reason == "caught_up":
                self._until(lambda: not self._others())
                self._require_no_error(beside)
                if not self.sinks.left():
                    return
        raise WorldError(f"no driver has caught up although faults have ceased; {self.sinks.left()}")

    def _may_go_on(self, driver: Process, steps: int, *, overlaps: bool) -> bool:
        """Whether the next driver may begin: this one has ended, or it is taken for dead."""
        is_asleep = driver.wakes_s - self.scheduler.now_s > 1.0
        return not driver.is_alive or self.scheduler.steps > steps or (overlaps and is_asleep)

    def _others(self) -> list[Process]:
        return [process for process in self.scheduler.processes if process.is_alive]

    def _until(self, is_so: Callable[[], bool]) -> None:
        self.scheduler.run(lambda: self.invariants.broken is not None or is_so(), MOST_STEPS)
        if self.invariants.broken is not None:
            raise self.invariants.broken
        for driver in self._drivers:
            self._judge(driver)

    @staticmethod
    def _require_no_error(processes: list[Process]) -> None:
        for process in processes:
            if process.error is not None:
                raise WorldError(f"{process.name} has failed: {process.error!r}") from process.error

    def _judge(self, driver: Process) -> None:
        """A driver may end in an error only if a newer one has claimed, or is about to, if it was told to stop while
        the disk was full, if the storage did not do what it was asked, or if a topic was not the one that was read."""
        error = driver.error
        if error is None or isinstance(error, FencedError | CommitOutOfSpaceError):
            return
        if driver.is_excused and isinstance(error, OSError | RunError | StateError | DeltaError):
            return
        if isinstance(error, OffsetsLostError) and (
            driver.has_seen_wrong or self.brokers.lacks(error.lost, self.invariants.confirmed)
        ):
            return
        newest = max(self.invariants.generations, default=0)
        if getattr(driver, "generation", newest) < newest or driver is not self._drivers[-1]:
            return
        text = "".join(traceback.format_exception(error))
        raise WorldError(f"{driver.name} has failed:\n{text}") from error

    # Who lives in it

    def _begin_driver(self, *, is_last: bool) -> Process:
        is_live = not is_last and self.rng.random() < 0.4
        number, stop = len(self._drivers) + 1, Event(self.scheduler)
        lasts_s = self.rng.uniform(0.05, 2.0)

        def live() -> object:
            with closing(self.sinks.publishers(self.place)) as publishers:
                return run(publishers)

        def run(publishers: SimulatedPublishers) -> RunSummary:
            driver = self.place.driver(publishing=publishers)
            process = self.scheduler.current
            if process is not None:
                process.generation, process.driver = driver.generation, driver
            self.scheduler.note(f"runs generation {driver.generation}")
            wrong = self.brokers.wrong if self.brokers.is_another else ""
            if is_live:
                self.scheduler.spawn(f"stop d{number}", lambda: (self.scheduler.sleep(lasts_s), stop.set()))
            publishers.start(driver.generation)
            summary = driver.run(stop, until_caught_up=not is_live)  # type: ignore[arg-type]
            self.scheduler.note(f"{summary.reason}, {summary.records_in} records, epoch {summary.epoch}")
            if wrong and summary.reason == "caught_up":
                raise WorldError(f"a run has caught up although {wrong}")
            if is_last:
                self.sinks.outside.heal()
                publishers.settle()
            publishers.close(CAUGHT_UP_LIMIT_S if summary.reason == "caught_up" else STOP_LIMIT_S)
            return summary

        self._drivers.append(self.scheduler.spawn(f"d{number}", live))
        self._drivers[-1].has_seen_wrong = bool(self.brokers.wrong)
        return self._drivers[-1]

    def _fill(self) -> None:
        brokers, rng = self.brokers, self.rng
        opens, elections = rng.choice([0.0, 0.0, 0.3]), rng.choice([0, 0, 3])
        while brokers.waiting or brokers.open:
            if rng.random() < opens and brokers.waiting and not brokers.open:
                brokers.begin()
                self.scheduler.point("a transaction begins")
            brokers.add(rng.choice([1, 3, 10, 40]))
            self.scheduler.point("records came")
            self.scheduler.sleep(rng.choice([0.0, 0.05, 0.5]))
            if brokers.open and rng.random() < 0.5:
                is_aborted = rng.random() < 0.5
                brokers.end(is_aborted=is_aborted)
                self.scheduler.point(f"the transaction is {'aborted' if is_aborted else 'committed'}")
            if rng.random() < 0.1 and self.invariants.positions:
                brokers.forget(self.invariants.positions)
                self.scheduler.point("retention")
            if elections and rng.random() < 0.7 and brokers.lose_newest(self.invariants.confirmed, rng):
                elections -= 1
                self.scheduler.point(f"new leaders lack records: {brokers.leaders}")

    def _go_wrong(self) -> None:
        """Something happens to a topic of which something is committed; once no driver is alive, it is as it was."""
        brokers, rng = self.brokers, self.rng
        read: list[TopicPartition] = []
        while not read and (self._drivers_alive() or len(self._drivers) < self.faults.drivers):
            self.scheduler.sleep(rng.uniform(0.0, 1.0))
            read = sorted(at for at, offset in self.invariants.positions.items() if offset > brokers.oldest.get(at, 0))
        if not read:
            return
        at = rng.choice(read)
        position = self.invariants.positions[at]
        match rng.choice(["made anew", "cut", "expired"]):
            case "made anew":
                brokers.make_anew(at[0], rng)
            case "cut":
                brokers.cut(at, rng.randrange(position), rng, grows=rng.random() < 0.7)
            case _:
                brokers.expire(at, min(brokers.count(at), position + rng.choice([1, 5])))
        for driver in self._drivers:
            driver.has_seen_wrong |= driver.is_alive
        self.scheduler.note(brokers.wrong)
        self.scheduler.sleep(rng.choice([0.5, 5.0, 30.0]))
        while self._drivers_alive():
            self.scheduler.sleep(0.5)
        brokers.heal()
        self.scheduler.note("the topics are as they were")

    def _drivers_alive(self) -> bool:
        return _are_alive(self._drivers)

    def _compact(self) -> None:
        for _ in range(self.rng.choice([1, 3])):
            self.scheduler.sleep(self.rng.uniform(0.0, 1.0))
            if self.invariants.commits:
                compaction = Compaction(
                    self.place.warehouse,
                    self.place.application.id,
                    is_whole=self.rng.random() < 0.5,
                    tombstone_retention_ms=self.rng.choice([0, 300, 86_400_000]),
                    on_step=self.scheduler.point,
                )
                for _ in compaction.run(compaction.tables()):
                    self.scheduler.point("table compacted")

    def _ask(self) -> None:
        tasks = [str(task) for task in self.place.spec().tasks]
        for _ in range(self.rng.randrange(1, 5)):
            self.scheduler.sleep(self.rng.uniform(0.0, 0.3))
            kinds = ["commit", "restore", "restore", "slots", "pause"]
            kinds += ["snapshot"] if not self.repairs.is_on else []
            kind = self.rng.choice(kinds)
            self.scheduler.note(f"asks for {kind}")
            task = {"task": self.rng.choice(tasks)} if kind == "restore" else {}
            slot = {"slot": FREEST_SLOT} if kind == "restore" and self.rng.random() < 0.5 else {}
            slots = {"slots": self.rng.choice("123")} if kind == "slots" else {}
            paused = {"tasks": self.rng.choice(tasks).split("_")[0]} if kind == "pause" else {}
            self.place.desk.ask(kind, **task, **slot, **slots, **paused)
        self.place.desk.ask("resume")  # else nobody would read what is paused

    # What goes wrong

    def _calling(self, kind: str, name: str) -> AbstractContextManager[None]:
        """Around a call of the storage."""
        if kind not in READS:
            return self._changing(f"{kind} {name}")
        process = self.scheduler.current
        if process is not None and self.rng.random() < self.faults.errors / 4:
            self._fail(process, f"{kind} {name}")
        return READING

    @contextmanager
    def _changing(self, label: str) -> Iterator[None]:
        self.scheduler.point(label)
        yield
        self.scheduler.point(label + DONE)

    def _target(self, process: Process) -> Process | None:
        """The driver that a process belongs to, if faults may still happen to it."""
        driver = process
        while driver not in self._drivers:
            if driver.started_by is None:
                return None
            driver = driver.started_by
        return driver if self._left and driver is self._drivers[-1] else None

    def _fail(self, process: Process, label: str) -> None:
        """A call of the storage fails, if it may."""
        driver, error = self._target(process), error_at(label, self.rng)
        if driver is None or error is None:
            return
        self._left -= 1
        self.scheduler.note(f"{label} fails: {error}")
        if not is_publisher(process):  # whose failures no driver may notice
            driver.is_excused |= driver.has_failed or not is_survived(label, error)
            driver.has_failed = True
        raise error

    def _on_point(self, process: Process, label: str) -> None:
        driver, faults = self._target(process), self.faults
        if driver is None:
            return
        chance = self.rng.random()
        is_worker = "/w" in process.name
        if chance < faults.kills:
            self._left -= 1
            if is_worker and self.rng.random() < 0.5:
                self.scheduler.kill(process)
                self._replace(process)
            elif is_publisher(process) and self.rng.random() < 0.7:
                self.scheduler.kill(process.thread_of or process)
            else:
                self._kill_driver(driver)
        elif (chance := chance - faults.kills) < faults.blackouts:
            self._left -= 1
            self._lose_power()
        elif (chance := chance - faults.blackouts) < faults.replacements:
            if is_worker:
                self._left -= 1
                self.scheduler.note("is given up")
                self._replace(process)
                self._sleep(process)
        elif (chance := chance - faults.replacements) < faults.sleeps:
            self._left -= 1
            self._sleep(process)
        elif (chance := chance - faults.sleeps) < faults.jumps:
            self._left -= 1
            if self.rng.random() < 0.5:
                self.scheduler.now_s += self.rng.choice([2.0, 30.0])
                self.scheduler.note("clocks jump")
            else:
                self.scheduler.wall_ahead_s = self.rng.choice([-86_400.0, -10.0, 10.0])
                self.scheduler.note(f"the wall clock is {self.scheduler.wall_ahead_s} s ahead")
        elif chance - faults.jumps < faults.errors:
            self._fail(process, label)

    def _sleep(self, process: Process) -> None:
        seconds = self.rng.choice([0.05, 0.5, 3.0, 20.0])
        self.scheduler.note(f"sleeps for {seconds} s")
        process.wakes_s = self.scheduler.now_s + seconds

    def _replace(self, worker: Process) -> None:
        for slots in self.place.slots_now:
            slots.replaced(worker)

    def _kill_driver(self, driver: Process) -> None:
        """Its workers, restores and snapshots die with it, or go on until they notice."""
        self.scheduler.kill(driver)
        for process in list(self.scheduler.processes):
            if process.started_by is driver and self.rng.random() < 0.6:
                self.scheduler.kill(process)

    def _lose_power(self) -> None:
        """All that compute die, on whichever host, and disks lose what was not synced."""
        self.scheduler.note("the power fails")
        for process in list(self.scheduler.processes):
            if process.is_alive and process not in self._outside:
                self.scheduler.kill(process)
        self.stores.close_all()
        stores = "state-*/*/*/instance.json", f"{FOLDER}/*/*/*/*/*/instance.json"
        for instance in sorted(each for pattern in stores for each in self.place.folder.glob(pattern)):
            spoil(instance.parent)
        self.boots += 1
        for change in self.disk.lose_power(self.rng):
            self.scheduler.note(change)

    def _between(self) -> None:
        """What happens to local state while no driver begins."""
        if self._at_work():
            return
        self.stores.close_all()
        if self.rng.random() < self.faults.wipes:
            folders = sorted(self.place.folder.glob("state-*/*"))
            for folder in folders if self.rng.random() < 0.5 else self.rng.sample(folders, min(1, len(folders))):
                self.scheduler.note(f"local state of {folder.name} is lost")
                shutil.rmtree(folder)
        if self.rng.random() < self.faults.moves:
            self.place.host = "b" if self.place.host == "a" else "a"
            self.scheduler.note(f"the next driver is on host {self.place.host}")

    def _at_work(self) -> bool:
        """Whether anybody may have a store open."""
        return any(
            process.is_alive and (process.started_by or process in self._drivers) and not is_publisher(process)
            for process in self.scheduler.processes
        )
