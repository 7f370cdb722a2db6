"""The clean-up of local state on the executors of a cluster: what no assignment has needed for a while.

Executors keep the stores and standbys of tasks that have gone elsewhere, since these may come back, and rows of global
tables that earlier programs had. Now and then, a job on each removes what is too old (``weir.state.engine.cleanup``),
and what its quarantine has beyond the limits.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark import SparkContext

from weir.infra.spark.executors import executor_id
from weir.pipelines.spark.background import BackgroundJobs, first_line
from weir.pipelines.spark.parts import Keeps
from weir.pipelines.spark.slots import SlotPool
from weir.pipelines.spark.worker import WorkerSettings
from weir.pipelines.tasks.global_table import shared_folder
from weir.state.commit.log import newest_generation
from weir.state.commit.protocol import newest_commit
from weir.state.engine.cleanup import clean_up
from weir.state.engine.instances import instance_folder
from weir.state.engine.quarantine import clean
from weir.state.engine.standby import standby_folder
from weir.state.storage.places import folder_at
from weir.state.types import TaskId

log = logging.getLogger("weir.driver")

POOL = "clean-up"
EVERY_S = 60.0
"""How often executors are looked through."""
TASK = TaskId(0, 0)
"""For which a job gives its answer, since jobs give one per task."""


@dataclass(frozen=True, kw_only=True)
class CleanUpRequest:
    """What an executor is to keep."""

    executor: str
    instances: Mapping[str, str]
    """By the stored name of each task, the instance that it has; wherever it runs, since executors may share a
    folder."""
    standbys: Collection[str]
    """The stored names of the tasks of which executors on its host keep standbys."""
    global_tables: Collection[str]
    """The names of the stores of the program's global tables, of which every executor may have a copy."""
    generation: int
    keeps: Keeps


def carry_out(settings: WorkerSettings, request: CleanUpRequest, now_s: float) -> str:
    """Clean up on this host; returns what was removed, empty if nothing. A driver that was overtaken removes nothing,
    nor does anybody what the newest commit lists."""
    state_folder, folder = Path(settings.tasks.state_folder), folder_at(settings.tasks.application_folder)

    def needed() -> Collection[Path]:
        if newest_generation(folder.parent, folder.name) > request.generation:
            return set(state_folder.glob("*/*"))
        newest = newest_commit(folder.parent, folder.name)
        committed = {} if newest is None else {name: task.instance for name, task in newest.tasks.items()}
        return {
            instance_folder(state_folder / name, instance)
            for names in (request.instances, committed)
            for name, instance in names.items()
            if instance
        } | {
            *(standby_folder(state_folder / name) for name in request.standbys),
            *(shared_folder(state_folder, store) for store in request.global_tables),
        }

    removed = clean_up(
        state_folder, needed, generation=request.generation, delay_s=request.keeps.unneeded_s, now_s=now_s
    )
    limited = clean(state_folder, request.keeps.quarantine, now_s).removed
    found = [f"{path.parent.name}/{path.name}" for path in removed]
    found += [f"{each.task_folder.name}/quarantine/{each.path.name}" for each in limited]
    return ", ".join(found)


def run_clean_up(settings: WorkerSettings, request: CleanUpRequest, rows: Iterable[object]) -> Iterator[str]:
    """``carry_out`` inside a Spark task; elsewhere than on its executor it removes nothing."""
    list(rows)
    if request.executor == executor_id():
        yield carry_out(settings.here(), request, time.time())
    else:
        yield ""


class CleanUps:
    """Has each executor cleaned up now and then."""

    def __init__(
        self,
        spark_context: SparkContext,
        settings: WorkerSettings,
        slots: SlotPool,
        keeps: Keeps | None,
        global_tables: Collection[str],
    ) -> None:
        """``keeps`` is None on a single host, where this does nothing; ``global_tables`` are those of the program, by
        the names of their stores."""
        self._context, self._settings, self._slots, self._keeps = spark_context, settings, slots, keeps
        self._global_tables = global_tables
        self._jobs: dict[str, BackgroundJobs[str]] = {}
        self._not_before = time.monotonic() + EVERY_S

    def begin_due(self, instances: Mapping[str, str], standbys: Mapping[str, Collection[str]], generation: int) -> None:
        """Begin, if it is time, on all executors that are not at it; call it right after a commit. While a task
        restores, what is being built would not be known to be needed. ``standbys`` are those that each executor
        keeps."""
        self._take_up()
        now_s = time.monotonic()
        if self._keeps is None or now_s < self._not_before:
            return
        self._not_before = now_s + EVERY_S
        homes = {executor: self._slots.executor_at(executor) for executor in self._slots.executors()}
        of_hosts = defaultdict[str, set[str]](set)
        for executor, home in homes.items():
            if home is not None:
                of_hosts[home.host].update(standbys.get(executor, ()))
        for executor, home in homes.items():
            jobs = self._jobs.setdefault(executor, BackgroundJobs[str](self._context, POOL))
            if jobs.is_at_work or home is None:
                continue
            request = CleanUpRequest(
                executor=executor,
                instances=instances,
                standbys=of_hosts[home.host],
                global_tables=self._global_tables,
                generation=generation,
                keeps=self._keeps,
            )
            jobs.start([TASK], partial(run_clean_up, self._settings, request), home)

    def _take_up(self) -> None:
        for executor, jobs in self._jobs.items():
            for _, answer in jobs.finished():
                if isinstance(answer, BaseException):
                    log.warning("executor %s: its state is not cleaned up: %s", executor, first_line(answer))
                elif answer:
                    log.info("executor %s: removed state that no assignment has needed: %s", executor, answer)

    def close(self) -> None:
        for jobs in self._jobs.values():
            jobs.close()
