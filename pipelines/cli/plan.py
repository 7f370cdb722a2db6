"""``weir plan``: shows what a program would do with its application's committed state before you run it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

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
    from weir.pipelines.spark.errors import LostPosition
    from weir.pipelines.topology.changes import TopologyChange

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

    Shows which stores keep their state, and which of those get another grace period, retention or foreign key; which
    stores would start empty or be abandoned; outputs and topics added or removed; partition counts that changed; and
    topics that no longer hold what the committed positions belong to.
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
                **_plain(planned.change),
            }
        )
    else:
        _print(planned.application, planned.committed_epoch, planned.change, planned.obstacles, planned.lost)
    if planned.is_refused:
        raise typer.Exit(REFUSED)


def _plain(change: TopologyChange) -> dict[str, Any]:
    return {**asdict(change), "going_on": sorted(change.going_on)}


def _print(
    application: str, epoch: int, change: TopologyChange, blocked: list[str], lost: Sequence[LostPosition]
) -> None:
    lines = [
        *(f"store {name}: keeps its state" for name in change.kept),
        *(
            f"store {each.store}: {each.setting} was {each.before or 'not set'} and is now {each.now or 'not set'}, "
            "for records read from now on"
            for each in change.settings
        ),
        *(f"store {name}: new, starts empty" for name in change.added),
        *(
            f"store {name}: REBUILT, starts empty: results count only records read from now on"
            for name in change.rebuilt
        ),
        *(f"store {name}: ORPHANED, its state is abandoned" for name in change.orphaned),
        *(f"output {name}: new" for name in change.outputs_added),
        *(f"output {name}: no longer written; its table stays as it is" for name in change.outputs_removed),
        *(f"topic {name}: new, read from where the application's `start` says" for name in change.topics_added),
        *(f"topic {name}: no longer read; its positions are dropped" for name in change.topics_removed),
        *(
            f"sub-topology {name}: {before} tasks committed, {now} now: keys move to other tasks"
            for name, (before, now) in change.partitions.items()
        ),
    ]
    other = "another topology" if change.is_other_topology else "the same topology"
    console.print(f"{application}, epoch {epoch}: committed by {other}", markup=False, soft_wrap=True)
    for line in lines:
        console.print(f"  {line}", markup=False, soft_wrap=True)
    _print_obstacles(blocked)
    if change.loses_state:
        computed = (
            "compute what the new one would hold with `weir backfill run MODULE:APP --everything`, "
            if change.is_other_topology
            else ""
        )
        console.print(
            f"run would refuse, because state would be lost: run the old program, {computed}give the new one "
            "another id so that it reads everything from the beginning, or accept the loss with --accept-state-loss",
            markup=False,
            soft_wrap=True,
        )
    for each in lost:
        console.print(f"run would refuse: it continues from {each}", markup=False, soft_wrap=True)
        if each.resume is not None:
            console.print(
                f"  --accept-lost-records keeps all state and reads it on at offset {each.resume}",
                markup=False,
                soft_wrap=True,
            )
    if not (blocked or lost or change.loses_state):
        console.print("run would start with all its state", markup=False, soft_wrap=True)


def _print_obstacles(obstacles: Iterable[str]) -> None:
    for sentence in obstacles:
        console.print(f"run would refuse: {sentence}", markup=False, soft_wrap=True)
