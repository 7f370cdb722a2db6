"""A standby follows the commits of its task, beside the epochs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weir.state.changelog.reading import TaskChangelog
from weir.state.changelog.restore import RestoreProgress, caught_up, continues, restore_task
from weir.state.commit.record import TaskCommit
from weir.state.engine.standby import READING_S, Left, Reached, standby_of
from weir.state.storage.places import Place
from weir.state.types import StateId, StoreSpec


def follow(
    app_folder: Place,
    task: Path,
    task_id: str,
    specs: Sequence[StoreSpec],
    commit: TaskCommit,
    through: StateId,
    *,
    generation: int,
    task_rows: Sequence[tuple[bytes, bytes]],
    at_ms: int,
    anew: bool = False,
    before: int | None = None,
    left: Left | None = None,
) -> int:
    """Bring the standby in a task's folder to the task's part of the commit ``through``; returns how many rows were
    loaded. One that is not there, cannot follow or is to begin ``anew`` begins with the instance that is ``left``
    there, or is built as a restore does.

    ``at_ms`` is when the commit was made, by its row. ``before`` is the generation of which this one continues
    everything: a standby that it has brought to one of its commits goes on even where it is to begin ``anew``, as long
    as the task is in the same instance as then, which it is not if its copies turned out to be no good.

    Killed at any point, it leaves a standby at an older commit, or none; what is left is where it was, or the standby.

    Raises:
        StandbyError: Another process is at it.
    """
    names, loaded = [spec.name for spec in specs], 0

    def on_progress(progress: RestoreProgress) -> None:
        nonlocal loaded
        loaded = progress.rows

    with standby_of(task, READING_S) as standby:
        goes_on = anew and continues(task, app_folder, before, commit.instance)
        if anew and not goes_on:
            standby.remove()
        reached = Reached(commit=through, at_ms=at_ms, instance=commit.instance)
        store = standby.opened(task_id, names, generation, through, left, before if goes_on else None)
        tails = list[TaskChangelog]()
        if store is not None:
            base = store.base
            assert base is not None
            tails = [
                TaskChangelog.of(app_folder, spec, task_id, through=through.epoch, above=base.epoch) for spec in specs
            ]
            if not all(tail.has_deletions_since(base.epoch) for tail in tails):
                store.close()
                standby.remove()
                store = None
            elif base == commit.state:
                store.close()
                standby.note(reached)
                return 0
        if store is None:
            restore_task(
                app_folder,
                standby.new,
                task_id,
                specs,
                commit,
                through,
                generation=generation,
                task_rows=task_rows,
                on_progress=on_progress,
            ).close()
            standby.built()
            standby.note(reached)
            return loaded
        with standby.following():
            caught_up(
                store,
                tails,
                is_begun=True,
                task_id=task_id,
                state=commit.state,
                generation=generation,
                task_rows=dict(task_rows),
                rebuilt={},
                source="standby",
                on_progress=on_progress,
            ).close()
            standby.note(reached)
    return loaded
