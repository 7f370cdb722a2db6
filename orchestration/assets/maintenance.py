"""What jobs do to an application beside its ingest, as assets: compactions, checkpoints and moved positions.

Nothing here runs anything: the jobs in ``weir.orchestration.jobs`` materialize these assets.
"""

from __future__ import annotations

from functools import partial

import dagster as dg

from weir.orchestration.supervised import Supervised
from weir.state.types import CHANGELOG_FOLDER


def maintenance_assets(supervised: Supervised) -> dg.AssetsDefinition:
    """``<app>/compaction``, ``<app>/checkpoints`` with a partition per task, and ``<app>/positions``.

    One definition for each application: of bare specs Dagster makes a single one, topics included, and resolves all of
    it for the job of each ingest.
    """
    changelogs = [key for name, key in supervised.tables.items() if name.startswith(CHANGELOG_FOLDER)]
    spec = partial(dg.AssetSpec, group_name=supervised.name, owners=supervised.owners, tags=supervised.tags)
    specs = [
        spec(
            supervised.compaction,
            deps=list(supervised.tables.values()),
            kinds={"deltalake"},
            description="Files of the application's tables merged into fewer, and deleted; the job weir_compaction "
            "materializes this and each table that it has compacted.",
        ),
        spec(
            supervised.checkpoints,
            deps=changelogs or [supervised.ingest],
            kinds={"lmdb"},
            partitions_def=supervised.task_partitions,
            description="The state of each task as a copy or anew: the job weir_snapshot materializes the tasks whose "
            "snapshots it has had published, and weir_restore the one that it has had restored.",
        ),
        spec(
            supervised.positions,
            deps=[supervised.ingest],
            kinds={"kafka"},
            description="Where the application reads on, as taken from another system or given to one; each job "
            "weir_migrate_... that is carried out materializes this.",
        ),
    ]
    return dg.AssetsDefinition(specs=specs)
