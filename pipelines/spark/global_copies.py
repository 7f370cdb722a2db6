"""Has executors' copies of global tables follow their topics while the tasks that join them have nothing to read.

Then no plan brings a copy on, and a query would wait for a record of the joining stream. It is asked of a slot while no
plan is under way, so that none wants less than its copy has, and as seldom as ``EVERY_S``. What fails is left to the
next plan.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future

from weir.pipelines.spark.slots import SlotPool
from weir.pipelines.spark.worker import CopyRequest, run_copies

EVERY_S = 0.2


class GlobalCopies:
    """The copies on the executors of ``slots``."""

    def __init__(self, slots: SlotPool) -> None:
        self._slots = slots
        self._asked: list[Future[list[bool]]] = []
        self._not_before = 0.0

    @property
    def is_due(self) -> bool:
        """Whether slots may be asked now."""
        return time.monotonic() >= self._not_before and all(asked.done() for asked in self._asked)

    def bring_on(self, requests: Sequence[tuple[int, CopyRequest]]) -> None:
        """Ask each of these slots to bring its executor's copies on."""
        self._asked = [self._slots.ask(slot, run_copies, [request]) for slot, request in requests]
        self._not_before = time.monotonic() + EVERY_S
