"""Weir in Dagster: ``definitions`` gives everything for the applications of a code location; ``supervise`` says how one
of them is looked after. ``WeirApplication`` is the same as a component of a ``dg`` project."""

from weir.orchestration.application import definitions, supervise
from weir.orchestration.component import WeirApplication
from weir.orchestration.on_lag import OnLag
from weir.orchestration.resources import WeirResource
from weir.orchestration.thresholds import Thresholds

__all__ = ["OnLag", "Thresholds", "WeirApplication", "WeirResource", "definitions", "supervise"]

for _name in __all__:
    globals()[_name].__module__ = "weir.dagster"
