"""The check of an application's quarantine: is what could not be trusted within its limits of age and size?"""

import dagster as dg

from weir.orchestration.assets.materializations import dagster_values
from weir.orchestration.drivers.metadata import quarantine_metadata
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import size_text
from weir.pipelines.operations.quarantine import quarantine_status


def quarantine_check(supervised: Supervised) -> dg.AssetChecksDefinition:
    """Compares what is in quarantine with the limits of the settings."""

    @dg.asset_check(
        asset=supervised.ingest,
        name="quarantine",
        description="No local state in quarantine is older, or takes more of the disk, than the settings "
        "quarantine_max_days and quarantine_max_bytes allow.",
    )
    def quarantine(weir: WeirResource) -> dg.AssetCheckResult:
        """Look at the quarantined folders on this host."""
        settings = weir.settings()
        found = quarantine_status(settings, supervised.id)
        return dg.AssetCheckResult(
            passed=not found.over_limit,
            severity=dg.AssetCheckSeverity.WARN,
            description=found.over_limit or f"{size_text(found.size_bytes)} in quarantine",
            metadata={
                **dagster_values(quarantine_metadata(found)),
                "max_days": settings.quarantine_max_days,
                "max_bytes": settings.quarantine_max_bytes,
            },
        )

    return quarantine
