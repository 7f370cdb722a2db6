"""Pathway, of which ``scripts/pathway_jobs.py`` has the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bench.peers.peer import Guarantee, Run
from bench.peers.python import SCRIPTS, environment, environment_python

_PACKAGES = ("pathway==0.33.0", "confluent-kafka==2.12.2")
_THREADS = "2"


class PathwayPeer:
    """One process, whose engine has threads of its own. It keeps what it has read on disk, since snapshots of its
    operators need a licence key."""

    name = "pathway"
    title = "Pathway"
    guarantee: Guarantee = "at least once"
    jobs = frozenset(("python_sum", "sum_per_key"))
    settings: Mapping[str, str] = MappingProxyType(
        {
            "threads": _THREADS,
            "autocommit_duration_ms": "1000",
            "snapshot_interval_ms": "1000",
            "persistence": "inputs on disk",
        }
    )

    def install(self, folder: Path) -> None:
        environment(self.name, _PACKAGES)

    def command(self, run: Run) -> list[str]:
        python = str(environment_python(self.name, _PACKAGES))
        program = [str(SCRIPTS / "processes.py"), str(SCRIPTS / "pathway_jobs.py"), "1", "exited"]
        places = map(str, (run.client, run.topic, run.output, run.state))
        return ["env", f"PATHWAY_THREADS={_THREADS}", python, *program, *places, run.job]
