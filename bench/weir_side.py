"""One run of one application in a separate process: ``python -m bench.weir_side REFERENCE DIR BOOTSTRAP``.

Snapshots are off; only the runs that make state to restore would have enough events for one.

Prints one JSON object: records, and seconds from the first epoch with input to the end of the last commit, and
until a sink has everything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from weir.infra.settings import Settings
from weir.pipelines.spark.runner import run

SLOTS = 2


def main(arguments: Sequence[str]) -> None:
    reference, folder, bootstrap_servers = arguments
    settings = Settings(dir=Path(folder), bootstrap_servers=bootstrap_servers, slots=SLOTS, snapshot_rows=0)
    summary = run(reference, settings, bootstrap_servers=bootstrap_servers, until_caught_up=True)
    print(json.dumps({"records": summary.records_in, "seconds": summary.seconds + summary.publishing_s}))


if __name__ == "__main__":
    main(sys.argv[1:])
