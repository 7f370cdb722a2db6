"""A run whose tasks have all lost their state (``python -m bench.restore_side REFERENCE DIR CLIENT SNAPSHOT_ROWS``).

CLIENT is the broker's file of client properties. Prints one JSON object: rows restored, and seconds from the start of
the first restore to the end of the last one, as seen by the driver. With SNAPSHOT_ROWS above 0 the stop publishes
snapshots of tasks that changed by this many rows.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import cluster
from bench.weir_side import SLOTS
from weir.pipelines.spark.runner import run


class RestoreTimes(logging.Handler):
    """When the driver reports that restores start and end."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.rows, self.begun, self.ended = 0, list[float](), list[float]()

    def emit(self, record: logging.LogRecord) -> None:
        message = str(record.msg)
        if "it restores into instance" in message:
            self.begun.append(record.created)
        elif message.startswith("task %s: restored %s rows") and isinstance(record.args, tuple):
            self.ended.append(record.created)
            self.rows += int(str(record.args[1]))


def main(arguments: Sequence[str]) -> None:
    reference, folder, client, snapshot_rows = arguments
    settings = cluster.settings(Path(client), Path(folder), slots=SLOTS, snapshot_rows=int(snapshot_rows))
    times, log = RestoreTimes(), logging.getLogger("weir.driver")
    log.addHandler(times)
    log.setLevel(logging.INFO)
    run(reference, settings, bootstrap_servers=str(settings.bootstrap_servers), until_caught_up=True)
    print(json.dumps({"records": times.rows, "seconds": max(times.ended) - min(times.begun)}))


if __name__ == "__main__":
    main(sys.argv[1:])
