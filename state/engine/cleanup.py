"""Removes instances and standbys that no assignment has needed for a while: of tasks that other executors have since;
and rows of global tables that the program no longer has.

The first look marks such a folder with a file, and only a later look removes it, so each has two chances to be found
needed. An instance goes by way of the quarantine, which puts a newer driver's instance back (PROTOCOL 20), a standby
while nobody else may use it (PROTOCOL 42). What is in quarantine already is left to its limits. Rows of a global table
can be had again, so they go at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from weir.state.engine.doubts import clear_doubt
from weir.state.engine.instances import instances, noted_generation
from weir.state.engine.quarantine import discard, is_open, quarantine
from weir.state.engine.shared_rows import is_in_use, newest_user, shared_tables
from weir.state.engine.standby import StandbyError, standby_of, standbys, unneeded_mark
from weir.state.errors import FencedStoreError

UNNEEDED = "unneeded"
"""A file in an instance: since its time, nobody has needed the instance."""


def clean_up(
    state_folder: Path,
    needed: Callable[[], Collection[Path]],
    *,
    generation: int,
    delay_s: float,
    now_s: float,
) -> list[Path]:
    """Remove the instances, standbys and folders of global tables below an application's state folder that have been
    marked for ``delay_s``, and mark those that are not needed now; returns those that were removed.

    ``needed`` is asked at once, and again before each removal. A folder stays that a newer generation uses, or that a
    process has open. Killed at any point, it leaves an instance where it was, or in quarantine, a standby or none, and
    of a global table what the next look removes.
    """
    removed, wanted = list[Path](), needed()

    def is_due(folder: Path, mark: Path, is_used: Callable[[Path], bool]) -> bool:
        if folder in wanted or is_used(folder):  # this process may have open what is wanted
            mark.unlink(missing_ok=True)
            return False
        if not mark.exists():
            mark.touch()
            return False
        return now_s - mark.stat().st_mtime >= delay_s and folder not in needed()

    def is_held(folder: Path) -> bool:
        return noted_generation(folder) > generation or is_open(folder)

    def is_table_held(folder: Path) -> bool:
        return newest_user(folder) > generation or is_in_use(folder)

    for folder in instances(state_folder):
        with suppress(FileNotFoundError):  # somebody else was quicker
            if is_due(folder, folder / UNNEEDED, is_held) and _remove(folder, generation):
                removed.append(folder)
    for folder in standbys(state_folder):
        with suppress(FileNotFoundError, StandbyError):
            if is_due(folder, mark := unneeded_mark(folder), is_held):
                with standby_of(folder.parent) as standby:
                    mark.unlink()  # unless it has been used since
                    standby.remove()
                removed.append(folder)
    for folder in shared_tables(state_folder):
        with suppress(FileNotFoundError):
            if is_due(folder, folder / UNNEEDED, is_table_held):
                shutil.rmtree(folder)
                removed.append(folder)
    return removed


def _remove(folder: Path, generation: int) -> bool:
    try:
        aside = quarantine(folder, "no assignment has needed it", generation)
    except FencedStoreError:
        return False
    if aside is None:
        return False
    discard(aside)
    clear_doubt(folder)
    return True
