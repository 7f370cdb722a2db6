"""A driver in a test whose executors have disks of their own: what a task leaves on one is not found on another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest

from tests.pipelines.spark import inline
from tests.pipelines.spark.inline import InlineSlots, Place
from weir.pipelines.spark.driver import Driver
from weir.pipelines.spark.parts import RunSpec, Slots
from weir.pipelines.tasks.epoch import EpochRunner, TaskSettings
from weir.pipelines.tasks.plan import Receipt, Renewal, TaskPlan
from weir.state.types import TaskId


@dataclass
class Hosts(Place):
    """``use`` has restores and standbys find the disks, too."""

    executor_of: Callable[[TaskId], str] = field(default=lambda task: "")

    def folder_on(self, executor: str) -> Path:
        """The application's folder of local state there."""
        return self.folder / f"executor-{executor}" / self.application.id

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """For as long as the test goes on."""
        restore, bring = inline.restore, inline.bring

        def at(settings: TaskSettings, executor: str) -> TaskSettings:
            return replace(settings, state_folder=str(self.folder_on(executor)))

        monkeypatch.setattr(
            inline,
            "restore",
            lambda application, settings, request, reader: restore(
                application, at(settings, self.executor_of(request.task)), request, reader
            ),
        )
        monkeypatch.setattr(
            inline,
            "bring",
            lambda application, settings, request: bring(application, at(settings, request.executor), request),
        )

    def slots(self, spec: RunSpec, on_step: Callable[[str], None]) -> Slots:
        return InlineSlots(_Runners(self, spec, on_step))  # type: ignore[arg-type]

    def driver(self, *arguments: Callable[..., None], **accepts: bool) -> Driver:
        run = super().driver(*arguments, **accepts)
        slots, tasks = run._coordinator.slots, run._coordinator.tasks
        self.executor_of = lambda task: slots.executor_of(tasks[task].slot)
        return run


class _Runners:
    """Those of all executors, as one."""

    def __init__(self, hosts: Hosts, spec: RunSpec, on_step: Callable[[str], None]) -> None:
        self._hosts = hosts

        @cache
        def on(executor: str) -> EpochRunner:
            settings = replace(spec.task_settings, state_folder=str(hosts.folder_on(executor)))
            handling = spec.application.error_handling
            return EpochRunner(spec.application.topology, settings, cache(hosts.topics.reader), on_step, handling)

        self._on = on
        self._renewal: Callable[[TaskPlan], Renewal | None] = lambda plan: None

    def run(self, plan: TaskPlan) -> Receipt:
        return self._on(self._hosts.executor_of(plan.task)).run(plan)

    def settle(self, task: TaskId, instance: str, **options: object) -> bool:
        return self._on(self._hosts.executor_of(task)).settle(task, instance, **options)  # type: ignore[arg-type]
