"""The checks of an application's sinks outside the warehouse: does each of them have what was committed?"""

import time
from collections.abc import Iterator

import dagster as dg

from weir.infra.settings import Settings
from weir.orchestration.advice import in_dagster
from weir.orchestration.assets.materializations import dagster_values
from weir.orchestration.checks.selection import selected
from weir.orchestration.drivers.metadata import sink_metadata
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.registry import applications
from weir.pipelines.operations.sinks import sinks_of
from weir.pipelines.publishing.state import SinkState

CHECK = "delivered"


def sink_checks(supervised: Supervised) -> list[dg.AssetChecksDefinition]:
    """One op that looks at every sink; none for an application without sinks."""
    if not supervised.sinks:
        return []
    max_wait_s = supervised.thresholds.sink_lag_max_s

    @dg.multi_asset_check(
        name=f"{supervised.name}_audit_sinks",
        can_subset=True,
        description="See whether sinks have got what was committed.",
        specs=[
            dg.AssetCheckSpec(
                CHECK,
                asset=key,
                description=f"No committed row has waited for more than {max_wait_s:,.0f} s, and none was refused.",
            )
            for key in supervised.sinks.values()
        ],
    )
    def audit_sinks(context: dg.AssetCheckExecutionContext, weir: WeirResource) -> Iterator[dg.AssetCheckResult]:
        yield from selected(context, sink_results(supervised, weir.settings()))

    return [audit_sinks]


def sink_results(supervised: Supervised, settings: Settings) -> Iterator[dg.AssetCheckResult]:
    """One result per sink."""
    max_wait_s = supervised.thresholds.sink_lag_max_s
    has_run = supervised.id in applications(settings)
    states = {state.sink: state for state in sinks_of(settings, supervised.id)} if has_run else {}
    for sink, key in supervised.sinks.items():
        state = states.get(sink)
        trouble = sink_trouble(state, supervised.id, max_wait_s, time.time()) if state else None
        yield dg.AssetCheckResult(
            asset_key=key,
            check_name=CHECK,
            passed=trouble is None,
            severity=dg.AssetCheckSeverity.WARN,
            description=trouble or (in_dagster(state.summary, supervised.id) if state else "nothing was sent yet"),
            metadata=dagster_values(
                {**(sink_metadata(settings, supervised.id, sink) if state else {}), "max_wait_s": max_wait_s}
            ),
        )


def sink_trouble(sink: SinkState, application: str, max_wait_s: float, now_s: float) -> str | None:
    """What is wrong with a sink, in a sentence; None if it has all that it should have."""
    error, partition = in_dagster(sink.error, application), f"with the partition {application}:{sink.sink}"
    if sink.awaits == "skip":
        return f"a row is refused: {error}; to put it aside, launch weir_sink_skip {partition}"
    if sink.awaits is not None:
        return error
    if sink.lag_s(now_s) > max_wait_s:
        why = f": {error}" if error else ""
        return f"{sink.waiting_rows:,} rows wait, the oldest for {sink.lag_s(now_s):,.0f} s{why}"
    if sink.refused_rows:
        return (
            f"{sink.refused_rows:,} refused rows are aside: {sink.first_refusal}; to send them again, launch "
            f"weir_sink_retry {partition}, or weir_sink_discard to delete them"
        )
    return None
