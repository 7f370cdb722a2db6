"""Of checks that one op evaluates, those that a run selects."""

from collections.abc import Iterable, Iterator

import dagster as dg


def selected(
    context: dg.AssetCheckExecutionContext, results: Iterable[dg.AssetCheckResult]
) -> Iterator[dg.AssetCheckResult]:
    """The results of the checks that the run selects; Dagster would record the others, too, with a warning each."""
    wanted = {(key.asset_key, key.name) for key in context.selected_asset_check_keys}
    return (result for result in results if (result.asset_key, result.check_name) in wanted)
