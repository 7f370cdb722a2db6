"""The results of a bench on disk: each workload as soon as it is there, so that a bench that was ended goes on with the
next one, and everything once the bench has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.workload import Workload

RESULTS, UNFINISHED, CHART = "results.json", "unfinished.json", "rates.svg"


class Kept:
    """The workloads of an unfinished bench in ``folder``, if it was made by the same ``setup`` (peers, numbers of runs
    and events, version of Weir); those of another are dropped."""

    def __init__(self, folder: Path, setup: Mapping[str, Any], *, fresh: bool = False) -> None:
        self._folder, self._setup = folder, dict(setup)
        self._workloads = dict[tuple[str, int], Workload]()
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / UNFINISHED
        if unfinished.is_file() and not fresh:
            found = json.loads(unfinished.read_text(encoding="utf-8"))
            if found["setup"] == self._setup:
                for each in map(Workload.from_json, found["workloads"]):
                    self._workloads[each.name, each.event_bytes] = each

    def find(self, job: str, event_bytes: int) -> Workload | None:
        """What was measured before the bench was ended; None if the job has to be run."""
        return self._workloads.get((job, event_bytes))

    def keep(self, workload: Workload) -> None:
        """Write a workload that is complete."""
        self._workloads[workload.name, workload.event_bytes] = workload
        self._write(UNFINISHED, {})

    def finish(self, others: Mapping[str, Any]) -> Path:
        """Write all workloads with ``others`` to the file that is returned; the next bench begins anew."""
        written = self._write(RESULTS, others)
        (self._folder / UNFINISHED).unlink(missing_ok=True)
        return written

    def _write(self, name: str, others: Mapping[str, Any]) -> Path:
        workloads = [workload.as_json() for workload in self._workloads.values()]
        fresh = self._folder / f"{name}.new"
        fresh.write_text(json.dumps({"setup": self._setup, "workloads": workloads, **others}, indent=1))
        return fresh.replace(self._folder / name)
