"""One run of one application in a separate process: ``python -m bench.weir_side REFERENCE DIR CLIENT``.

CLIENT is the broker's file of client properties. Snapshots are off; only the runs that make state
to restore would have enough events for one.

Prints one JSON object: records, and seconds from the first epoch with input to the end of the last commit, and
until a sink has everything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import cluster
from weir.pipelines.spark.runner import run

SLOTS = 2


def main(arguments: Sequence[str]) -> None:
    reference, folder, client = arguments
    settings = cluster.settings(Path(client), Path(folder), slots=SLOTS, snapshot_rows=0)
    summary = run(reference, settings, bootstrap_servers=str(settings.bootstrap_servers), until_caught_up=True)
    print(json.dumps({"records": summary.records_in, "seconds": summary.seconds + summary.publishing_s}))


if __name__ == "__main__":
    main(sys.argv[1:])
