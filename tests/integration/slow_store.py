"""An application whose stores are slow in one slot: there each row that is written takes ``DELAY_S`` longer."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from weir import Application, Count, StreamsBuilder, String
from weir.pipelines.spark.slots import SLOT_VARIABLE
from weir.state.engine import task_store

TOPIC, SLOW_SLOT, DELAY_S = "slow_store", 0, 0.02

_builder = StreamsBuilder()
_builder.stream(TOPIC, key=String("user"), value=String("page")).group_by_key().agg("visits", visits=Count()).to_delta(
    "totals"
)
app = Application("slow_store", _builder, commit_interval=timedelta(milliseconds=500))

if os.environ.get(SLOT_VARIABLE) == str(SLOW_SLOT):
    write_rows = task_store._write_rows

    def write_slowly(txn: Any, database: Any, rows: Mapping[bytes, bytes | None]) -> int:
        time.sleep(DELAY_S * len(rows))
        return write_rows(txn, database, rows)

    task_store._write_rows = write_slowly
