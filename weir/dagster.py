"""Weir in Dagster: ``weir_assets`` gives an application's assets, checks, jobs and sensors, to be merged with the
resources ``weir`` (a ``WeirResource``) and ``pipes`` (``driver_pipes()``)."""

from weir.orchestration.application import weir_assets
from weir.orchestration.resources import WeirResource, driver_pipes
from weir.orchestration.thresholds import Thresholds

__all__ = ["Thresholds", "WeirResource", "driver_pipes", "weir_assets"]

for _name in __all__:
    globals()[_name].__module__ = "weir.dagster"
