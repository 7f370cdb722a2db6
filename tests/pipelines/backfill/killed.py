"""A process that swaps in a backfill of ``program`` and is killed with SIGKILL at one of its steps."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.faults.dying import signalled_at
from tests.forked import ended
from tests.pipelines.backfill.program import app, mended
from tests.pipelines.spark.inline import Place
from weir.pipelines.backfill.everything import swap_everything
from weir.pipelines.backfill.shadow import EVERYTHING, Shadow
from weir.pipelines.backfill.swap import prepare, swap_at_rest


def swap_killed_at(place: Place, shadow: Shadow, step: str) -> None:
    """Swap in ``shadow`` in a process that is killed at ``step``."""
    code = ended(_swap, place.warehouse, place.folder / "shadows", shadow.id, step)
    assert code == -signal.SIGKILL, f"it did not reach {step!r}"


def _swap(warehouse: Path, shadows: Path, backfill: str, step: str) -> None:
    on_step = signalled_at(step)
    shadow = Shadow.of(warehouse, shadows, app.id, backfill)
    if shadow.backfill.days == EVERYTHING:
        swap_everything(warehouse, mended, shadow, on_step)
    else:
        prepare(shadow, on_step)
        swap_at_rest(warehouse, app, backfill, on_step)
