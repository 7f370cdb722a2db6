"""The beginning of a backfill: what it swaps, where its cut is, what it reads; then its shadow can be run."""

from __future__ import annotations

from pathlib import Path

from pipelines.application import Application
from pipelines.backfill.errors import NoDayOutputsError
from pipelines.backfill.outputs import day_outputs
from pipelines.backfill.ranges import Cluster, cut_of, kafka_ranges
from pipelines.backfill.shadow import Backfill, Days, Shadow, new_id
from state.commit.protocol import newest_commit


def begin_from_kafka(application: Application, warehouse: Path, state_dir: Path, cluster: Cluster, days: Days, *,
                     margin_ms: int | None = None) -> Shadow:
    """Begin a backfill of ``days`` over what the topics hold; ``margin_ms`` is by default what the windows need.

    Raises:
        NoDayOutputsError: No output has rows that belong to days.
        NoCutError: The application's newest commit cannot be the cut.
        HistoryLostError: The topics may have lost records of the days.
    """
    outputs = day_outputs(application.topology)
    if not outputs.swapped:
        raise NoDayOutputsError(application.id, "; ".join(
            f"{table!r}: {reason}" for table, reason in outputs.left_out.items()) or "it has no output at all")
    cut = cut_of(application, newest_commit(warehouse, application.id))
    margin_ms = outputs.look_back_ms if margin_ms is None else margin_ms
    ranges = kafka_ranges(application, cluster, cut, max(0, days.start_ms - margin_ms))
    backfill = Backfill(id=new_id(days), application=application.id, days=days, source="Kafka", ranges=ranges,
                        cut_epoch=cut.epoch, outputs=outputs.swapped, left_out=outputs.left_out)
    shadow = Shadow.of(warehouse, state_dir, application.id, backfill.id)
    shadow.begin(backfill)
    return shadow
