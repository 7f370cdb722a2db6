"""Marks of instances in doubt: a file beside an instance whose rows a check has found to differ (PROTOCOL 41).

A mark is about one folder on one host, so it is kept there, as the quarantine is, and not in the control database: that
may be lost, be another one, or not answer just when a driver has to know. It is beside the instance, not inside,
because a restore begins by moving the instance away, and the doubt ends only when one has succeeded. It is named after
the instance, so it says nothing of the one that a restore builds: the doubt ends with the commit that names that one,
and the file is removed after it. Looking for differences is up to ``weir.pipelines.operations.verify``; what a driver
does about a mark, to ``weir.pipelines.spark.restores``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from weir.state.engine.environment import replace_file

_SUFFIX = ".in-doubt"


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A difference that was found and is not yet restored."""

    task: str
    """The task's id, such as ``0_3``."""
    store: str
    difference: str
    """In one sentence, with the key, what the changelog has and what the store has."""
    found_at_s: float
    """In seconds of Unix time."""
    found_by: str


_DOUBTS = msgspec.json.Decoder(Doubt)


def doubt_of(instance: Path) -> Doubt | None:
    """Why an instance is in doubt; None if it is not."""
    try:
        return _DOUBTS.decode(_mark(instance).read_bytes())
    except FileNotFoundError:
        return None


def put_in_doubt(instance: Path, doubt: Doubt) -> None:
    """Mark an instance, durably; the first mark of an instance stands. One that is gone, moved away by a restore, gets
    none."""
    if instance.is_dir() and not _mark(instance).exists():
        replace_file(_mark(instance), msgspec.json.encode(doubt))


def clear_doubt(instance: Path) -> None:
    """Remove the mark of an instance that no commit names any more."""
    _mark(instance).unlink(missing_ok=True)


def instances_in_doubt(state_folder: Path) -> Iterator[Path]:
    """The instances of an application's tasks that have a mark, there or gone."""
    for mark in state_folder.glob(f"*/[!.]*{_SUFFIX}"):
        yield mark.with_name(mark.name.removesuffix(_SUFFIX))


def _mark(instance: Path) -> Path:
    return instance.with_name(f"{instance.name}{_SUFFIX}")
