"""The check of an application's quarantine: is what could not be trusted within its limits of age and size?"""

import dagster as dg

from weir.infra.settings import Settings
from weir.orchestration.advice import in_dagster
from weir.orchestration.assets.materializations import dagster_values
from weir.orchestration.drivers.metadata import quarantine_metadata
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import size_text
from weir.pipelines.operations.quarantine import quarantine_status

CHECK = "quarantine"


def quarantine_check(supervised: Supervised) -> dg.AssetChecksDefinition:
    """Compares what is in quarantine with the limits of the settings."""

    @dg.asset_check(
        asset=supervised.ingest,
        name=CHECK,
        description="No local state in quarantine is older, or takes more of the disk, than the settings "
        "quarantine_max_days and quarantine_max_bytes allow.",
    )
    def quarantine(weir: WeirResource) -> dg.AssetCheckResult:
        """Look at the quarantined folders on this host."""
        return quarantine_result(supervised, weir.settings())

    return quarantine


def quarantine_result(supervised: Supervised, settings: Settings) -> dg.AssetCheckResult:
    """A warning if something is over its limit."""
    found = quarantine_status(settings, supervised.id)
    return dg.AssetCheckResult(
        asset_key=supervised.ingest,
        check_name=CHECK,
        passed=not found.over_limit,
        severity=dg.AssetCheckSeverity.WARN,
        description=in_dagster(found.over_limit, supervised.id) or f"{size_text(found.size_bytes)} in quarantine",
        metadata={
            **dagster_values(quarantine_metadata(found)),
            "max_days": settings.quarantine_max_days,
            "max_bytes": settings.quarantine_max_bytes,
        },
    )
