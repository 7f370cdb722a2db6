"""Drivers that a bench starts as ``weir run``, with a ``weir.toml`` of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import cluster
from bench.processes import ROOT
from weir.infra.process import end_with_parent


def configure(folder: Path, spark: dict[str, str], **settings: Any) -> None:
    """What drivers find that run in ``folder``; ``spark`` are properties of Spark."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    lines += ["[spark]", *(f'"{name}" = {json.dumps(value)}' for name, value in spark.items())]
    (folder / "weir.toml").write_text("\n".join(lines) + "\n")


@contextmanager
def driver(client: Path, folder: Path, program: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver during the block, with its own folder ``driver`` in ``folder``, and what it says in ``output``."""
    command = [str(Path(sys.executable).with_name("weir")), "run", program]
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            [*command, *flags, "--dir", str(folder / "driver")],
            stdout=output,
            stderr=output,
            cwd=folder,
            env={**os.environ, **cluster.variables(client), "PYTHONPATH": str(ROOT)},
            preexec_fn=end_with_parent(),
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait()
