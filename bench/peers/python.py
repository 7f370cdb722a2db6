"""Peers in Python, for jobs that call a Python function for each record. Each has an environment of its own, made once
below the user's cache folder, so that nothing of theirs is among Weir's dependencies."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from bench.peers.peer import Guarantee, NotRunError, Run
from weir.infra.settings import cache_home

SCRIPTS = Path(__file__).parent / "scripts"
PROCESSES = "2"
INSTALL_LIMIT_S = 900


class PythonPeer:
    """One library, whose program is ``scripts/<script>`` and runs in ``PROCESSES`` processes."""

    jobs = frozenset(("python_sum",))

    def __init__(
        self,
        name: str,
        title: str,
        guarantee: Guarantee,
        packages: Sequence[str],
        script: str,
        until: Literal["exited", "committed"],
        settings: Mapping[str, str],
    ) -> None:
        """``packages`` are pinned; ``settings`` says what the script sets."""
        self.name, self.title, self.guarantee = name, title, guarantee
        self.settings: Mapping[str, str] = MappingProxyType({"processes": PROCESSES, **settings})
        self._packages, self._script, self._until = tuple(packages), script, until

    def install(self, folder: Path) -> None:
        environment(self.name, self._packages)

    def command(self, run: Run) -> list[str]:
        python = environment_python(self.name, self._packages)
        program = [str(SCRIPTS / self._script), PROCESSES, self._until]
        return [
            str(python),
            str(SCRIPTS / "processes.py"),
            *program,
            *map(str, (run.client, run.topic, run.output, run.state)),
        ]


def environment_python(name: str, packages: Sequence[str]) -> Path:
    """The interpreter of the environment that ``environment`` makes; its folder's name depends on the packages."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    made_of = hashlib.sha256("\n".join((version, *packages)).encode()).hexdigest()[:12]
    return cache_home() / "weir" / "bench" / f"{name}-{made_of}" / "bin" / "python"


def environment(name: str, packages: Sequence[str]) -> Path:
    """Make the environment of ``packages`` unless it is there; returns its interpreter.

    Raises:
        NotRunError: The packages cannot be installed here; the text has pip's last lines.
    """
    python = environment_python(name, packages)
    folder = python.parent.parent
    complete = folder / "complete"
    if complete.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    steps = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
    )
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise NotRunError(f"{', '.join(packages)} took longer than {INSTALL_LIMIT_S} s to install") from None
        if done.returncode:
            last = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
            raise NotRunError(f"{', '.join(packages)} cannot be installed:\n{last}")
    complete.touch()
    return python
