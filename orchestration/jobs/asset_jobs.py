"""Jobs that select assets and checks: the ingest, the full comparison of the state and the outputs, and the audit."""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import (  # has no public name
    UnresolvedAssetJobDefinition as AssetJob,
)

from weir.orchestration.assets.ingest import ingest_op
from weir.orchestration.checks.files import READABLE_CHECK
from weir.orchestration.checks.state import FULL_CHECK
from weir.orchestration.supervised import Supervised


def catch_up_name(supervised: Supervised) -> str:
    """The name of the job that ends once it has caught up."""
    return f"{supervised.name}_catch_up"


def continuous_name(supervised: Supervised) -> str:
    """The name of the job without an end."""
    return f"{supervised.name}_continuously"


def catch_up_job(supervised: Supervised) -> AssetJob:
    """``<app>_catch_up``: the ingest, until everything in the topics has been processed."""
    return _ingest_job(
        supervised,
        catch_up_name(supervised),
        "Run the ingest until it has caught up with its topics.",
        until_caught_up=True,
    )


def continuous_job(supervised: Supervised) -> AssetJob:
    """``<app>_continuously``: the ingest, until it is stopped."""
    return _ingest_job(
        supervised,
        continuous_name(supervised),
        "Run the ingest until it is stopped or terminated; the hourly audit runs its checks.",
        until_caught_up=False,
    )


def _ingest_job(supervised: Supervised, name: str, description: str, *, until_caught_up: bool) -> AssetJob:
    return dg.define_asset_job(
        name,
        tags=supervised.tags,
        description=description,
        selection=dg.AssetSelection.assets(supervised.ingest, *supervised.tables.values()).without_checks(),
        config={"ops": {ingest_op(supervised): {"config": {"until_caught_up": until_caught_up}}}},
    )


def verify_job(supervised: Supervised) -> AssetJob:
    """``<app>_verify``: the full comparison of the state, and all rows of the outputs."""
    return dg.define_asset_job(
        f"{supervised.name}_verify",
        description="Compare every store with its changelog and with the commit log, and read every file of the "
        "output tables.",
        selection=_full_checks(supervised),
        tags=supervised.tags,
    )


def audit_job(supervised: Supervised) -> AssetJob:
    """``<app>_audit``: every other check."""
    every = dg.AssetSelection.checks_for_assets(supervised.ingest, *supervised.tables.values())
    return dg.define_asset_job(
        f"{supervised.name}_audit",
        description="Every check except those that read all of the state or of a table; safe next to a running driver.",
        selection=every - _full_checks(supervised),
        tags=supervised.tags,
    )


def _full_checks(supervised: Supervised) -> dg.AssetSelection:
    return dg.AssetSelection.checks(
        dg.AssetCheckKey(supervised.ingest, FULL_CHECK),
        *(dg.AssetCheckKey(key, READABLE_CHECK) for key in supervised.outputs.values()),
    )
