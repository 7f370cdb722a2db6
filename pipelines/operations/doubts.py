"""The tasks of an application that are in doubt: a check has found a difference, and no restore has succeeded since.

The marks are ``weir.state.engine.doubts``; a mark counts as long as the newest commit names its instance.
"""

from __future__ import annotations

from datetime import UTC, datetime

from weir.infra.settings import Settings
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.text import utc_text
from weir.state.commit.log import newest_commit
from weir.state.engine.doubts import Doubt, doubt_of
from weir.state.engine.instances import instance_folder, task_folder
from weir.state.storage.places import folder_at


class InDoubtError(OperationError):
    """A difference that was found earlier has not been restored yet."""

    def __init__(self, doubt: Doubt) -> None:
        super().__init__(doubt)
        self.doubt = doubt

    def __str__(self) -> str:
        at = utc_text(datetime.fromtimestamp(self.doubt.found_at_s, UTC))
        return (
            f"{self.doubt.difference}; found at {at} by {self.doubt.found_by}, and not restored yet: until then the "
            "task processes nothing"
        )


def doubts(settings: Settings, application: str) -> list[Doubt]:
    """The differences on this host that are not restored yet."""
    newest = newest_commit(folder_at(settings.warehouse), application)
    found = (
        doubt_of(instance_folder(task_folder(settings.state_dir, application, name), task.instance))
        for name, task in (newest.tasks.items() if newest is not None else ())
    )
    return [doubt for doubt in found if doubt is not None]
