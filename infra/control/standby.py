"""A driver that waits while another one drives the application, on whichever host, and takes its place when that dies.

It goes by the control database alone, which is advice: if the other one is alive after all, the commit log fences it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event

from weir.infra.control.database import ControlDatabase, LeaseHeldError
from weir.infra.control.guard import DriverControl
from weir.infra.control.rows import ApplicationStatus

LOOK_EVERY_S = 0.5
SILENT_MAX_S = 6.0
"""A driver gives a heartbeat each two seconds; one that has given none for so long is taken for dead."""


def control_once_free(
    url: str, application: str, *, owner: str, stop: Event, say: Callable[[str], None]
) -> DriverControl | None:
    """The control of the application as soon as nobody else drives it: at once, or after its driver has died or fallen
    silent. None if ``stop`` is set before, or that driver was stopped on request, which is for its standbys too.

    ``say`` is told once whom it waits for.

    Raises:
        ControlDatabaseError: The database cannot be read.
    """
    database, waits_for = ControlDatabase(url), ""
    while not stop.is_set():
        life = database.application_status(application, of_driver=True)
        if waits_for and life is not None and life.ended_at_ms is not None and life.state == "stopped":
            return None
        try:
            return DriverControl(url, application, owner=owner, take_over=life is not None and _is_silent(life))
        except LeaseHeldError as error:
            who = f"{error.owner} (process {error.pid} on {error.host})"
            if who != waits_for:
                waits_for = who
                say(f"standby of {who}: takes over when that dies, and ends when it is stopped")
        stop.wait(LOOK_EVERY_S)
    return None


def _is_silent(life: ApplicationStatus) -> bool:
    return time.time() - life.heartbeat_at_ms / 1000 > SILENT_MAX_S
