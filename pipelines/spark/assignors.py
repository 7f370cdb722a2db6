"""The assignor of a run and what it is told besides the state of the cluster, as the settings have it; its answers are
judged before anybody acts on them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from weir.infra.settings import Settings
from weir.pipelines.assignment import (
    ApplicationState,
    ExecutorState,
    HighAvailabilityAssignor,
    InvalidAssignmentError,
    StickyAssignor,
    TaskAssignment,
    TaskAssignor,
    TaskInfo,
    check,
)
from weir.pipelines.spark.errors import RunError

HIGH_AVAILABILITY, RACK_AWARE, STICKY = "high_availability", "rack_aware", "sticky"


class AssignorError(RunError):
    """An assignor of the user's own cannot be asked, or its answer cannot be carried out."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return (
            f"assignor {self.name!r}: {self.reason}; correct it, or set assignor to {HIGH_AVAILABILITY}, {RACK_AWARE} "
            f"or {STICKY}"
        )


@dataclass(frozen=True, kw_only=True)
class Assignors:
    """Asks the assignor of a run."""

    name: str = HIGH_AVAILABILITY
    assignor: TaskAssignor = field(default_factory=HighAvailabilityAssignor)
    standby_replicas: int = 0
    acceptable_recovery_lag: int = 10_000
    """In rows of changelogs."""
    max_warmup_replicas: int = 2
    probing_interval_s: float = 10.0
    """How long after an answer that waits for warm-ups the assignor is asked again."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As the settings say.

        Raises:
            AssignorError: There is no such class, or it is no assignor.
        """
        return cls(
            name=settings.assignor,
            assignor=_made(settings.assignor),
            standby_replicas=settings.standby_replicas,
            acceptable_recovery_lag=settings.acceptable_recovery_lag,
            max_warmup_replicas=settings.max_warmup_replicas,
            probing_interval_s=settings.probing_interval_s,
        )

    def state(self, executors: Iterable[ExecutorState], tasks: Iterable[TaskInfo]) -> ApplicationState:
        """What the assignor decides by."""
        return ApplicationState(
            executors={each.id: each for each in executors},
            tasks={each.id: each for each in tasks},
            standby_replicas=self.standby_replicas,
            acceptable_recovery_lag=self.acceptable_recovery_lag,
            max_warmup_replicas=self.max_warmup_replicas,
            spreads_over_racks=self.name == RACK_AWARE,
        )

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """The assignor's answer.

        Raises:
            AssignorError: It gives none, or one that cannot be carried out.
        """
        try:
            found = self.assignor.assign(state)
            check(found, state)
        except InvalidAssignmentError as error:
            raise AssignorError(self.name, f"{error}") from error
        except Exception as error:
            raise AssignorError(self.name, f"it has failed with {type(error).__name__}: {error}") from error
        return found


def _made(name: str) -> TaskAssignor:
    """The assignor that a setting names."""
    if name == STICKY:
        return StickyAssignor()
    if name in (HIGH_AVAILABILITY, RACK_AWARE):
        return HighAvailabilityAssignor()
    module, _, attribute = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # whatever the user's module raises
        raise AssignorError(name, f"it cannot be made: {type(error).__name__}: {error}") from error
    if not callable(getattr(made, "assign", None)):
        raise AssignorError(name, "it has no method assign(state)")
    assignor: TaskAssignor = made
    return assignor
