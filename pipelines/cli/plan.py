"""``weir plan``: shows what a program would do with its application's committed state before you run it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from weir.pipelines.cli.advice import advised
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
    context: typer.Context,
    reference: ReferenceArgument,
    bootstrap_servers: ServersOption = None,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Compare a program with what its application has committed; changes nothing.

    Shows for each store whether it continues, evolves (and how), comes back, begins empty or is kept aside, and which
    get another grace period, retention or foreign key; for each output and changelog the columns that it gets; for
    each topic whether it continues; and topics that no longer hold what the committed positions belong to.
    The exit code is 0 if `weir run` would start with all its state, and 3 if it would refuse.
    """
    from weir.pipelines.operations.plan import plan_of

    planned = plan_of(load_settings(directory, bootstrap_servers=bootstrap_servers), reference)
    obstacles = [advised(each, context) for each in planned.obstacles]
    if planned.change is None or planned.committed_epoch is None:
        if as_json:
            print_json(
                {
                    "application": planned.application,
                    "committed_epoch": None,
                    "refused": planned.is_refused,
                    "obstacles": obstacles,
                }
            )
        elif planned.is_refused:
            for each in obstacles:
                console.print(_refusal(each), markup=False, soft_wrap=True)
        else:
            told = f"{planned.application} has committed nothing yet: `weir run MODULE:APP` starts from the beginning"
            console.print(advised(told, context), markup=False, soft_wrap=True)
        if planned.is_refused:
            raise typer.Exit(REFUSED)
        return
    if as_json:
        print_json(
            {
                "application": planned.application,
                "committed_epoch": planned.committed_epoch,
                "refused": planned.is_refused,
                "obstacles": obstacles,
                "lost_positions": [asdict(each) for each in planned.lost],
                **asdict(planned.change),
                "outputs_continued": planned.outputs_continued,
                "tables": {name: str(each) for name, each in planned.evolutions.items()},
            }
        )
    else:
        for line in _lines(planned, planned.change):
            console.print(advised(line, context), markup=False, soft_wrap=True)
    if planned.is_refused:
        raise typer.Exit(REFUSED)


def _lines(planned: Plan, change: TopologyChange) -> Iterator[str]:
    from weir.pipelines.spark.errors import OtherApplicationError
    from weir.pipelines.topology.changes import Fate
    from weir.state.types import CHANGELOG_FOLDER

    rebuilt = {f"{CHANGELOG_FOLDER}/{each.store}" for each in change.stores if each.fate is Fate.IS_REBUILT}
    from_now = (
        ", and it gets what is new or changes from now on; `weir backfill run MODULE:APP --everything` computes what "
        "it lacks"
    )
    from_now = "" if planned.is_refused else from_now
    other = "another topology" if change.is_other_topology else "the same topology"
    yield f"{planned.application}, epoch {planned.committed_epoch}: committed by {other}"
    for line in (
        *(f"store {each.store}{_shown(each)}: {each.fate}{_noted(each)}" for each in change.stores),
        *(
            f"store {each.store}: {each.setting} was {each.before or 'not set'} and is now {each.now or 'not set'}, "
            "for records read from now on"
            for each in change.settings
        ),
        *(
            f"{_output(name)}: continues the table that is there: its rows stay as they are{from_now}"
            if name in planned.outputs_continued
            else f"{_output(name)}: new{from_now}"
            for name in change.outputs_added
        ),
        *(f"{_output(name)}: no longer written; {_left(name)}" for name in change.outputs_removed),
        *(f"table {name}: evolves: {each}" for name, each in planned.evolutions.items() if name not in rebuilt),
        *(f"topic {name}: continues where it is" for name in change.topics_kept),
        *(f"topic {name}: new, read from where the application's `start` says" for name in change.topics_added),
        *(f"topic {name}: no longer read; its positions are kept" for name in change.topics_removed),
    ):
        yield f"  {line}"
    yield from map(_refusal, planned.obstacles)
    if change.is_unrelated:
        yield _refusal(str(OtherApplicationError(planned.application)))
    elif change.loses_state:
        yield _refusal(change.loss())
        ways = (
            "run the old program, compute what the new one would hold with "
            "`weir backfill run MODULE:APP --everything`, give the new one"
            if change.is_other_topology
            else f"deal the state out among other tasks with `weir repartition {planned.application}`, give the program"
        )
        yield (
            f"  {ways} another id so that it reads everything from the beginning, or accept the loss with "
            "`weir run MODULE:APP --accept-state-loss`"
        )
    for each in planned.lost:
        yield _refusal(f"it continues from {each}")
        if each.resume is not None:
            yield (
                "  `weir run MODULE:APP --accept-lost-records` keeps all state and reads the topic on at offset "
                f"{each.resume}"
            )
    if not planned.is_refused:
        yield "run would start with all its state"


def _output(table: str) -> str:
    from weir.state.commit.outbox import sink_of

    sink = sink_of(table)
    return f"output {table}" if sink is None else f"sink {sink}"


def _left(table: str) -> str:
    from weir.state.commit.outbox import sink_of

    if sink_of(table) is None:
        return "its table stays as it is"
    return "what still waits for it stays, and is published if a program has the sink again"


def _shown(change: StoreChange) -> str:
    return f" ({change.shown} in this program)" if change.shown else ""


def _noted(change: StoreChange) -> str:
    return f": {', '.join(change.notes)}" if change.notes else ""


def _refusal(reason: str) -> str:
    return f"run would refuse: {reason}"
