"""The job that runs an application's ingest: the only job that each application has for itself, since it selects the
application's own assets."""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import (  # has no public name
    UnresolvedAssetJobDefinition as AssetJob,
)

from weir.orchestration.supervised import NO_RETRIES, Supervised, owners_of


def ingest_job(supervised: Supervised) -> AssetJob:
    """``<app>_run``: until it is stopped, unless the configuration says ``until_caught_up: true``. Materializing the
    assets runs the ingest until it has caught up."""
    return dg.define_asset_job(
        supervised.ingest_job,
        tags={**supervised.tags, **NO_RETRIES},
        owners=owners_of([supervised]),
        description="Run the ingest until it is stopped or terminated, or with until_caught_up: true until it has "
        "caught up with its topics; the hourly audit runs its checks.",
        selection=dg.AssetSelection.assets(*supervised.produced).without_checks(),
        config={"ops": {supervised.ingest_op: {"config": {"until_caught_up": False}}}},
    )
