"""A profiled run: the tables of ``weir.pipelines.spark.profile``, and flame graphs of the driver and of each slot.

Loaded by such runs alone.
"""

from __future__ import annotations

import logging
from concurrent.futures import TimeoutError
from pathlib import Path

from weir.pipelines.spark.flame_graph import Sampling, page
from weir.pipelines.spark.profile import Done, Profile
from weir.pipelines.spark.slots import SlotError, SlotPool
from weir.pipelines.spark.worker import run_samples

log = logging.getLogger("weir.driver")

ANSWER_LIMIT_S = 5.0
"""How long the end of a run waits for what a worker has sampled."""


class ProfiledRun:
    """Hears of a run what ``weir.pipelines.spark.profile.Profiling`` says, and writes it into ``folder``."""

    def __init__(self, folder: Path, application: str) -> None:
        """Raises OSError if it cannot write there; flame graphs of an earlier run are removed."""
        self._profile, self._folder, self._application = Profile(folder), folder, application
        for old in folder.glob("*.html"):
            old.unlink()
        self.sampling = Sampling()
        """Of the driver's thread, which begins and ends it."""

    def done(self, done: Done) -> None:
        """As ``Profiling`` has it."""
        self._profile.done(done)

    def epoch(self, began_s: float, ended_s: float) -> None:
        """As ``Profiling`` has it; it also adds up what was sampled of the driver."""
        self._profile.epoch(began_s, ended_s)
        self.sampling.end()
        self.sampling.begin()

    def committed(self, seconds: float) -> None:
        """As ``Profiling`` has it."""
        self._profile.committed(seconds)

    def collect(self, slots: SlotPool, generation: int) -> None:
        """Write a flame graph for each slot whose worker answers: of what its tasks did since it was started."""
        asked = {slot: slots.ask(slot, run_samples, [slot]) for slot in range(slots.count)}
        for slot, answer in asked.items():
            try:
                (result,) = answer.result(ANSWER_LIMIT_S)
            except (SlotError, TimeoutError) as error:
                log.warning("slot %s has no flame graph: %s", slot, error or "its worker does not answer")
                continue
            self._write(f"generation-{generation}-slot-{slot}.html", f"{self._application}: slot {slot}", result)

    def close(self) -> None:
        """Write what is left."""
        self._profile.close()
        self._write("driver.html", f"{self._application}: driver", self.sampling.result())

    def _write(self, name: str, title: str, result: dict[str, object]) -> None:
        (self._folder / name).write_text(page(result, title), encoding="utf-8")
