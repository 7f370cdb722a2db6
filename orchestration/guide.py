"""What an operator launches, and when: shown with each ingest, since the page has no other guide at hand."""

from __future__ import annotations

from weir.orchestration.supervised import Supervised

_LAUNCH = (
    ("nothing runs, or a check names it", "{run}"),
    ("it is to pause, and to go on", "`weir_pause`, `weir_resume`"),
    ("it is to have more slots, or fewer", "`weir_scale`"),
    ("what is uncommitted is to be committed now", "`weir_commit_now`"),
    ("a check has found a store to differ, or a task is slow", "`weir_restore`, partition {app}:TASK"),
    ("checks of all states and commits are wanted now", "`weir_verify`, `weir_audit`"),
    ("tables have many small files, or a disk fills up", "`weir_compaction`"),
    ("restores take long", "`weir_snapshot`"),
    ("records were put aside", "`weir_dead_letters`, then `weir_replay_dead_letters` or `weir_discard_dead_letters`"),
    ("days are to be computed again", "*Materialize* of {app}/backfill; of everything, `weir_rebuild`"),
    ("backfills wait to be swapped in", "`weir_backfills`, then `weir_swap_backfill` or `weir_discard_backfill`"),
    ("positions come from elsewhere, or go there", "`weir_migrate_...`"),
    ("a topic has got more partitions", "`weir_repartition`"),
)


def guide(supervised: Supervised) -> str:
    """In Markdown: when to launch which job; each takes the application as its partition."""
    rows = [
        f"| {when} | {what.format(run=f'`{supervised.ingest_job}`', app=supervised.id)} |" for when, what in _LAUNCH
    ]
    return "\n".join(
        (
            f"Jobs other than `{supervised.ingest_job}` take the partition `{supervised.id}`.\n",
            "| when | launch |",
            "| --- | --- |",
            *rows,
        )
    )
