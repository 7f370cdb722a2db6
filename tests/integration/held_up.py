"""An application with a function that is stuck in the call for one record, and what it does otherwise.

Environment variables say how: ``HELD_UP`` is a folder, in which the call looks for the file ``go``; ``HELD_UP_HOW`` is
``waits``, or ``holds`` for a call that lets no other thread of its process run. Calls for the record are noted there.
"""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from weir import Application, Count, Json, StreamsBuilder, String, Sum

RECORDS, USERS, HELD = 400, 7, 123
TOPICS = ("held_up_slow", "held_up_fast")


@dataclass(frozen=True)
class Click:
    number: int


def called(click: Click) -> Click:
    folder = Path(os.environ["HELD_UP"])
    if click.number != HELD or (folder / "go").exists():
        return click
    with (folder / "calls").open("a") as calls:
        calls.write(f"{os.getpid()}\n")
    if os.environ["HELD_UP_HOW"] == "holds":
        ctypes.PyDLL(None).sleep(3600)
    while not (folder / "go").exists():
        time.sleep(0.05)
    return click


def build() -> Application:
    builder = StreamsBuilder()
    for topic in TOPICS:
        clicks = builder.stream(topic, key=String("user"), value=Json(Click))
        clicks = clicks.map_values(called) if topic.endswith("slow") else clicks
        clicks.group_by_key().agg(topic, clicks=Count(), total=Sum("number")).to_delta(topic)
    return Application("held_up", builder, commit_interval=timedelta(milliseconds=200))


app = build()
