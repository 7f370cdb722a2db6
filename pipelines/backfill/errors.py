"""Why there is no backfill; each text names what was found and the way out."""

from __future__ import annotations


class BackfillError(Exception):
    """A backfill cannot be made or found; the outputs are as they were."""


class NoDayOutputsError(BackfillError):
    """The application has no output whose rows belong to days."""

    def __init__(self, application: str, left_out: str) -> None:
        super().__init__(application, left_out)
        self.application, self.left_out = application, left_out

    def __str__(self) -> str:
        return (f"application {self.application!r} has no output that some days' records give: {self.left_out}; give "
                "the program another id and run it over everything, or `weir reset` it and run it again")


class HistoryLostError(BackfillError):
    """A topic may have lost records of the days."""

    def __init__(self, application: str, topic: str, partition: int, oldest: int) -> None:
        super().__init__(application, topic, partition, oldest)
        self.application, self.topic, self.partition, self.oldest = application, topic, partition, oldest

    def __str__(self) -> str:
        return (f"topic {self.topic!r}, partition {self.partition}, begins at offset {self.oldest} and has no record "
                "from before the days: some may have fallen out of retention, and a backfill of "
                f"{self.application!r} would replace whole days with half ones; choose later days, or a smaller "
                "--margin-hours")


class NoCutError(BackfillError):
    """The live application's newest commit cannot be the cut."""

    def __init__(self, application: str, reason: str) -> None:
        super().__init__(application, reason)
        self.application, self.reason = application, reason

    def __str__(self) -> str:
        return f"application {self.application!r} cannot be backfilled now: {self.reason}"


class UnknownBackfillError(BackfillError):
    """There is no backfill of that name, or not one that is complete."""

    def __init__(self, application: str, backfill: str, reason: str) -> None:
        super().__init__(application, backfill, reason)
        self.application, self.backfill, self.reason = application, backfill, reason

    def __str__(self) -> str:
        return f"backfill {self.backfill!r} of {self.application!r}: {self.reason}; `weir backfill list` shows all"
