"""Deletes files that no table holds and nobody can still need (PROTOCOL 15).

Delta's own full vacuum deletes whatever its log does not know, including files that a commit is about to name. Here
such a file goes only if it is older than the newest claim: the driver that wrote it is fenced and can never name it.
"""

from __future__ import annotations

from weir.state.commit.damage import require_no_empty_entry
from weir.state.storage.places import Place, folder_at, table_at

RETENTION_HOURS = 24
"""Grace for readers of older versions of a table, and for whatever else still uses a replaced file."""


def vacuum(place: Place, claimed_at_ms: int) -> int:
    """Delete files that left a table, or that a fenced driver or a crash left behind, more than a day ago.

    ``claimed_at_ms`` is when the newest driver claimed the application; the table must have everything that the commit
    log has for it. Returns how many files were deleted.
    """
    folder = folder_at(place)
    require_no_empty_entry(folder)  # the files that it named would count as unknown
    table = table_at(folder)
    taken_out, unknown = (
        table.vacuum(RETENTION_HOURS, dry_run=True, enforce_retention_duration=False, full=is_full)
        for is_full in (False, True)
    )
    doomed = set(taken_out)
    doomed |= {
        name
        for name in unknown
        if name.endswith(".parquet")
        and (found := folder.find(name)) is not None
        and found.modified_s * 1000 < claimed_at_ms
    }
    folder.delete(doomed)
    return len(doomed)
