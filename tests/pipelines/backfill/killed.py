"""A process that swaps in a backfill of ``program`` and is killed with SIGKILL at one of its steps.

``python -m tests.pipelines.backfill.killed WAREHOUSE SHADOWS BACKFILL STEP`` is that process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.pipelines.backfill.program import app, mended
from tests.pipelines.spark.inline import Place
from weir.pipelines.backfill.everything import swap_everything
from weir.pipelines.backfill.shadow import EVERYTHING, Shadow
from weir.pipelines.backfill.swap import prepare, swap_at_rest

LIFE_LIMIT_S = 120


def swap_killed_at(place: Place, shadow: Shadow, step: str) -> None:
    """Swap in ``shadow`` in a process that is killed at ``step``."""
    arguments = [str(place.warehouse), str(place.folder / "shadows"), shadow.id, step]
    ended = subprocess.run(
        [sys.executable, "-m", __name__, *arguments], capture_output=True, text=True, timeout=LIFE_LIMIT_S, check=False
    )
    assert ended.returncode == -signal.SIGKILL, f"it did not reach {step!r}: {ended.stderr}"


def main(warehouse: Path, shadows: Path, backfill: str, step: str) -> None:
    def on_step(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    shadow = Shadow.of(warehouse, shadows, app.id, backfill)
    if shadow.backfill.days == EVERYTHING:
        swap_everything(warehouse, mended, shadow, on_step)
    else:
        prepare(shadow, on_step)
        swap_at_rest(warehouse, app, backfill, on_step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
