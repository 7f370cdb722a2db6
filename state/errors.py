"""Errors by the reaction they ask for: restore the task, give up ownership, or stop."""

from __future__ import annotations


class StateError(Exception):
    """Base of what ``state`` raises."""


class TaskCorruptedError(StateError):
    """A task's local state cannot be trusted: quarantine its folder and restore it from the changelog."""

    def __init__(self, task_id: str, folder: str, reason: str) -> None:
        super().__init__(task_id, folder, reason)
        self.task_id, self.folder, self.reason = task_id, folder, reason

    def __str__(self) -> str:
        return (f"task {self.task_id}: local state in {self.folder} cannot be trusted: {self.reason}; "
                "the folder goes to quarantine and the task restores from its changelog")


class FencedError(StateError):
    """Another driver has claimed the application: write nothing more and stop (PROTOCOL 3)."""

    def __init__(self, application: str, mine: str, found: str) -> None:
        super().__init__(application, mine, found)
        self.application, self.mine, self.found = application, mine, found

    def __str__(self) -> str:
        return (f"application {self.application!r}: this driver wrote version {self.mine} last, but the commit "
                f"log is at {self.found}: a newer driver has taken over, so this one stops and writes nothing more")


class TableBehindError(StateError):
    """A table lacks files that the commit log promised and that are gone: it cannot be brought up to date."""

    def __init__(self, table: str, version: str, missing: str) -> None:
        super().__init__(table, version, missing)
        self.table, self.version, self.missing = table, version, missing

    def __str__(self) -> str:
        return (f"table {self.table!r}: commit {self.version} names the file {self.missing}, which is neither in "
                "the table nor on disk; restore the file from a backup, or reset the application")


class FormatVersionError(StateError):
    """Something on disk was written by a newer or an unknown version of Weir."""

    def __init__(self, where: str, wanted: int, found: int) -> None:
        super().__init__(where, wanted, found)
        self.where, self.wanted, self.found = where, wanted, found

    def __str__(self) -> str:
        return (f"{self.where} has format version {self.found}, this Weir reads {self.wanted}; "
                "run the version that wrote it, or reset the application")
