"""An ingest that shows no new commit turns stale."""

import asyncio
from datetime import timedelta

import dagster as dg
from dagster._core.definitions.freshness import FreshnessState
from dagster._core.definitions.freshness_evaluator import TimeWindowFreshnessPolicyEvaluator
from dagster._core.loader import LoadingContextForTest
from dagster._core.test_utils import freeze_time
from dagster._time import get_current_datetime

from tests.orchestration.applications import FLIGHTS
from weir.orchestration.assets.ingest import ingest_assets
from weir.orchestration.resources import WeirResource
from weir.orchestration.thresholds import Thresholds


def test_an_ingest_without_new_commits_turns_stale_by_dagsters_freshness_policy(instance):
    graph = dg.Definitions(
        [ingest_assets(FLIGHTS)], resources={"weir": WeirResource(), "pipes": None}
    ).resolve_asset_graph()
    instance.report_runless_asset_event(dg.AssetMaterialization(FLIGHTS.ingest))
    thresholds, now = Thresholds(), get_current_datetime()
    for age_s, state in (
        (0.0, FreshnessState.PASS),
        (thresholds.stale_warn_s + 5, FreshnessState.WARN),
        (thresholds.stale_fail_s + 5, FreshnessState.FAIL),
    ):
        with freeze_time(now + timedelta(seconds=age_s)):
            assert (
                asyncio.run(
                    TimeWindowFreshnessPolicyEvaluator().evaluate_freshness(
                        LoadingContextForTest(instance), graph.get(FLIGHTS.ingest)
                    )
                )
                == state
            )
