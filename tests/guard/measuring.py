"""What a job costs: the counts of one warm epoch and of its commit, in this process, without Spark and a broker.

Topics are in memory; everything else is real: the driver's coordinator, the operators, LMDB, files, Delta's logs. An
epoch here is all that it takes until a step's records have been processed: more than one where rows lead back to an
earlier sub-topology.
"""

from __future__ import annotations

import gc
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import _lru_cache_wrapper
from pathlib import Path

from tests.guard.allocations import Allocations
from tests.guard.counting import Counts, at_once, counted, places_of
from tests.guard.jobs import KEYS, MINUTE_MS, START_MS, Job
from tests.pipelines.spark.inline import Place, Topics
from weir.state.engine.cache import TaskStoreCache

WARM_UP = 3
"""So many steps come before those that are counted."""
GROWS_AT_MOST = 1.3
"""How many times as much of anything an epoch or a commit may take with ten times the keys, commits or tasks."""
FEW_COMMITS = 11
Phases = dict[str, Counts]
"""The counts of ``epoch`` and ``commit``."""


class Run:
    """A run of a job that is taken step by step."""

    def __init__(self, job: Job, folder: Path, partitions: int | None = None) -> None:
        names = dict.fromkeys(topic for topic, _ in job.records(range(1), START_MS))
        places = [(topic, number) for topic in names for number in range(partitions or job.partitions)]
        self.folder, self._records, self._topics = folder, job.records, Topics({place: [] for place in places})
        driver = Place(job.application(), self._topics, folder, max_records=1_000_000).driver()
        self._coordinator, self._limits = driver._coordinator, driver._limits

    def add(self, keys: range, at_ms: int) -> None:
        """Add the records of a step to the topics."""
        for partition, rows in self._records(keys, at_ms).items():
            self._topics.rows[partition] += rows

    def epoch(self) -> None:
        """Process all that the topics have."""
        ends = self._topics.end_offsets(list(self._topics.rows))
        while self._coordinator.run_epoch(ends, self._limits, START_MS) is not None:
            pass

    def commit(self) -> None:
        self._coordinator.finish_writing()
        self._coordinator.commit("interval")

    def steps(self, count: int, keys: range = range(KEYS), step_ms: int = MINUTE_MS) -> None:
        """Take steps over ``keys``, each so much later than the one before."""
        for number in range(count):
            self.add(keys, START_MS + number * step_ms)
            self.epoch()
            self.commit()

    def counted(self) -> Phases:
        return {"epoch": counted(self.epoch, self.folder), "commit": counted(self.commit, self.folder)}


@contextmanager
def running(job: Job, partitions: int | None = None) -> Iterator[Run]:
    """A run in a folder that is removed at the end of the block, with caches as at the start of a process."""
    for each in gc.get_objects():
        if isinstance(each, _lru_cache_wrapper) and each.__module__.startswith("weir."):
            each.cache_clear()
    with tempfile.TemporaryDirectory(prefix="guard-") as folder, at_once():
        yield Run(job, Path(folder), partitions)
        TaskStoreCache.close_all()


def measured(job: Job, allocations: Allocations) -> Phases:
    """The counts of a step of ``job``, whose records are a minute after those of the step before."""
    with running(job) as run:
        run.steps(WARM_UP)
        run.add(range(KEYS), START_MS + WARM_UP * MINUTE_MS)
        found = run.counted()
        run.add(range(KEYS), START_MS + (WARM_UP + 1) * MINUTE_MS)
        found["epoch"]["allocations"] = allocations.during(run.epoch)
        found["commit"]["allocations"] = allocations.during(run.commit)
    return found


def places(job: Job) -> dict[str, Mapping[str, Counter[str]]]:
    """By phase and count, in which lines of Weir's the same step does what."""
    with running(job) as run:
        run.steps(WARM_UP)
        run.add(range(KEYS), START_MS + WARM_UP * MINUTE_MS)
        return {"epoch": places_of(run.epoch), "commit": places_of(run.commit)}


def growth_with_keys(job: Job) -> dict[str, float]:
    """How many times as much a step over the same keys takes where the stores have ten times as many."""
    return _growth(_grown(job), _grown(job, keys=10 * KEYS))


def growth_with_commits(job: Job) -> dict[str, float]:
    """The same with ten times the commits before."""
    return _growth(_grown(job, commits=FEW_COMMITS), _grown(job, commits=10 * FEW_COMMITS))


def growth_with_tasks(job: Job) -> dict[str, float]:
    """The same with ten tasks, of which one has records. Python's calls are left out: plans and receipts of tasks are
    counted by ``tests/pipelines/spark/test_many_tasks.py``."""
    found = _growth(_grown(job, partitions=1), _grown(job, partitions=10))
    return {name: times for name, times in found.items() if not name.endswith("python_calls")}


def _grown(job: Job, *, keys: int = KEYS, commits: int = WARM_UP, partitions: int | None = None) -> Phases:
    """The counts of a step over ``KEYS`` keys, once the stores have ``keys`` and after so many commits. All records are
    of the same seconds, since what closes or expires is work for each key."""
    with running(job, partitions) as run:
        run.steps(1, range(keys))
        run.steps(commits - 1, step_ms=0)
        run.add(range(KEYS), START_MS)
        return run.counted()


def _growth(few: Phases, many: Phases) -> dict[str, float]:
    """By phase and count, how many times as much ``many`` has."""
    return {
        f"{phase}, {name}": count / few[phase].get(name, 1)
        for phase, counts in many.items()
        for name, count in counts.items()
    }
