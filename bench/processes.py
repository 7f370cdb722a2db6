"""Runs one measured process: returns what it prints as JSON, and its peak memory including children."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.memory import Peak, peak_memory
from weir.infra.process import end_with_parent

ROOT = Path(__file__).resolve().parent.parent
"""The clone, from which the processes import ``bench``."""
LIMIT_S = 900.0


class BenchError(Exception):
    """A run failed, or the two sides disagree; the text includes the last lines of its output."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run of one side."""

    records: int
    seconds: float
    """From the first record to the last commit."""
    peak_bytes: int
    """The sum of RssAnon over all its processes."""
    cpu_seconds: float
    """The processor time of all its processes, from their start."""

    @property
    def per_s(self) -> float:
        return self.records / self.seconds

    @property
    def cpu_s_per_million(self) -> float:
        """Processor time per million records, start-up included."""
        return self.cpu_seconds / self.records * 1e6


def measure(command: Sequence[str], name: str) -> Measured:
    """Run ``command``, which prints ``records`` and ``seconds``.

    Raises:
        BenchError: It ended with an error, or took longer than ``LIMIT_S``.
    """
    result, peak = run_json(command, name)
    return Measured(
        records=result["records"],
        seconds=result["seconds"],
        peak_bytes=peak.rss_anon_bytes,
        cpu_seconds=peak.cpu_seconds,
    )


def run_json(command: Sequence[str], name: str) -> tuple[dict[str, Any], Peak]:
    """Run ``command`` to its end; returns the JSON object in its last line of output, and what its processes used.

    Raises:
        BenchError: It ended with an error, or took longer than ``LIMIT_S``.
    """
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, preexec_fn=end_with_parent()
        )
        with process, peak_memory(process.pid) as peak:
            try:
                output, _ = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise BenchError(f"{name} took longer than {LIMIT_S:.0f} s") from None
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            errors.seek(0)
            last = "".join(errors.readlines()[-20:])
            raise BenchError(f"{name} ended with code {process.returncode}:\n{last}")
    return json.loads(output.splitlines()[-1]), peak
