"""Why something cannot be moved in or out; whenever one of these is raised, nothing was changed."""

from __future__ import annotations


class MigrationError(Exception):
    """What is to be moved does not fit, or something exists already; the text ends with the way out."""


class NotMovedError(MigrationError):
    """A store that has no counterpart; the others can still be moved."""

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(store, reason)
        self.store, self.reason = store, reason

    def __str__(self) -> str:
        return f"store {self.store!r} cannot be moved: {self.reason}"


class OffsetFileError(MigrationError):
    """A file of offsets cannot be read."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(file, line, reason)
        self.file, self.line, self.reason = file, line, reason

    def __str__(self) -> str:
        return (
            f"{self.file}, line {self.line}: {self.reason}; nothing was changed: copy the file again from a cleanly "
            "stopped application"
        )
