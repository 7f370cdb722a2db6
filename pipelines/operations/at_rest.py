"""Holds an application's lease while its commits are made by a command, so that no driver starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from weir.infra.control import ControlDatabase, ControlDatabaseError, this_host
from weir.infra.control.rows import AT_REST

LEASE_TTL_S = 600.0


@contextmanager
def at_rest(database: ControlDatabase, application: str) -> Iterator[None]:
    """Hold the application's lease inside the block, so that no driver starts."""
    lease = database.acquire_lease(application, owner=AT_REST, pid=os.getpid(), host=this_host(), ttl_s=LEASE_TTL_S)
    is_over = Event()

    def renew() -> None:
        while not is_over.wait(LEASE_TTL_S / 4):
            with suppress(ControlDatabaseError):
                database.heartbeat(lease, state="starting")  # the state of a new lease: nothing runs that could stall

    holder = Thread(target=renew, name="lease", daemon=True)
    holder.start()
    try:
        yield
    finally:
        is_over.set()
        holder.join()
        database.release(lease)
