"""``weir plan``: shows what a program would do with its application's committed state before you run it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from weir.pipelines.cli.options import (
    DebugOption,
    DirOption,
    JsonOption,
    ReferenceArgument,
    ServersOption,
    load_settings,
)
from weir.pipelines.cli.render import console, print_json

if TYPE_CHECKING:
    from weir.pipelines.operations.plan import Plan
    from weir.pipelines.topology.changes import StoreChange, TopologyChange

REFUSED = 3
"""The exit code when ``weir run`` would refuse to start, at all or without a flag."""


def plan(
    reference: ReferenceArgument,
    bootstrap_servers: ServersOption = None,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Compare a program with what its application has committed; changes nothing.

    Shows for each store whether it goes on, evolves (and how), comes back, begins empty or is kept aside, and which
    get another grace period, retention or foreign key; for each output and changelog the columns that it gets; for
    each topic whether it is read on; and topics that no longer hold what the committed positions belong to.
    The exit code is 0 if `weir run` would start with all its state, and 3 if it would refuse.
    """
    from weir.pipelines.operations.plan import plan_of

    planned = plan_of(load_settings(directory, bootstrap_servers=bootstrap_servers), reference)
    if planned.change is None or planned.committed_epoch is None:
        if as_json:
            print_json(
                {
                    "application": planned.application,
                    "committed_epoch": None,
                    "refused": planned.is_refused,
                    "obstacles": planned.obstacles,
                }
            )
        elif planned.is_refused:
            _print_obstacles(planned.obstacles)
        else:
            console.print(
                f"{planned.application} has committed nothing yet: `weir run MODULE:APP` starts from the beginning",
                markup=False,
            )
        if planned.is_refused:
            raise typer.Exit(REFUSED)
        return
    if as_json:
        print_json(
            {
                "application": planned.application,
                "committed_epoch": planned.committed_epoch,
                "refused": planned.is_refused,
                "obstacles": planned.obstacles,
                "lost_positions": [asdict(each) for each in planned.lost],
                **asdict(planned.change),
                "tables": {name: str(each) for name, each in planned.evolutions.items()},
            }
        )
    else:
        _print(planned, planned.change)
    if planned.is_refused:
        raise typer.Exit(REFUSED)


def _print(planned: Plan, change: TopologyChange) -> None:
    lines = [
        *(f"store {each.store}: {each.fate}{_noted(each)}" for each in change.stores),
        *(
            f"store {each.store}: {each.setting} was {each.before or 'not set'} and is now {each.now or 'not set'}, "
            "for records read from now on"
            for each in change.settings
        ),
        *(f"output {name}: new" for name in change.outputs_added),
        *(f"output {name}: no longer written; its table stays as it is" for name in change.outputs_removed),
        *(f"table {name}: evolves: {each}" for name, each in planned.evolutions.items()),
        *(f"topic {name}: goes on where it is" for name in change.topics_kept),
        *(f"topic {name}: new, read from where the application's `start` says" for name in change.topics_added),
        *(f"topic {name}: no longer read; its positions are dropped" for name in change.topics_removed),
    ]
    other = "another topology" if change.is_other_topology else "the same topology"
    console.print(
        f"{planned.application}, epoch {planned.committed_epoch}: committed by {other}", markup=False, soft_wrap=True
    )
    for line in lines:
        console.print(f"  {line}", markup=False, soft_wrap=True)
    _print_obstacles(planned.obstacles)
    if change.loses_state:
        console.print(f"run would refuse: {change.loss()}", markup=False, soft_wrap=True)
        console.print(f"  {_ways_on(planned, change)}", markup=False, soft_wrap=True)
    for each in planned.lost:
        console.print(f"run would refuse: it continues from {each}", markup=False, soft_wrap=True)
        if each.resume is not None:
            console.print(
                f"  --accept-lost-records keeps all state and reads it on at offset {each.resume}",
                markup=False,
                soft_wrap=True,
            )
    if not planned.is_refused:
        console.print("run would start with all its state", markup=False, soft_wrap=True)


def _ways_on(planned: Plan, change: TopologyChange) -> str:
    """What to do about state that would be lost."""
    computed = "compute what the new one would hold with `weir backfill run MODULE:APP --everything`"
    beside = "give the new one another id so that it reads everything from the beginning"
    if planned.to_rename:
        stores = " and ".join(map(repr, planned.to_rename))
        return f"run the old program, give {stores} another name to begin empty or to {computed}, or {beside}"
    ways = ["run the old program", *([computed] if change.is_other_topology else []), beside]
    return f"{', '.join(ways)}, or accept the loss with `weir run MODULE:APP --accept-state-loss`"


def _noted(change: StoreChange) -> str:
    return f": {', '.join(change.notes)}" if change.notes else ""


def _print_obstacles(obstacles: Iterable[str]) -> None:
    for sentence in obstacles:
        console.print(f"run would refuse: {sentence}", markup=False, soft_wrap=True)
