"""Names and values are printed as they are."""

from __future__ import annotations

import io
import re
import threading

import pytest
from rich.console import Console

from tests.waiting import wait_for
from weir.pipelines.cli import progress, render


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_title_with_colons_or_brackets_is_no_markup(monkeypatch, is_terminal):
    out = io.StringIO()
    made = Console(file=out, force_terminal=is_terminal, width=120, highlight=False, emoji=render.notices._emoji)
    monkeypatch.setattr(progress, "notices", made)
    with progress.counting("clicks:one: [bold] shop") as show:
        show(1, 2, "epoch [1] :one:")
    assert "clicks:one: [bold] shop" in out.getvalue()
    assert "epoch [1] :one:" in out.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_takes_long_is_said_where_nothing_can_be_counted(monkeypatch, is_terminal):
    out = io.StringIO()
    monkeypatch.setattr(progress, "notices", Console(file=out, force_terminal=is_terminal, width=120, highlight=False))
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.01)
    with progress.waiting("clicks", "starting [Spark]") as say:
        wait_for(lambda: "clicks: starting [Spark]" in out.getvalue(), "it is said")
        say("opening the tables")
        wait_for(lambda: "clicks: opening the tables" in out.getvalue(), "the next step is said")
    said = out.getvalue()
    assert is_terminal or re.fullmatch(r"(clicks: (starting \[Spark\]|opening the tables), 0 s\n)+", said)
    assert not any(thread.name == "waiting" for thread in threading.enumerate())


def test_what_is_over_soon_is_not_said_where_it_would_stay(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(progress, "notices", Console(file=out, width=120))
    with progress.waiting("clicks", "starting Spark"):
        pass
    assert out.getvalue() == ""


def test_consoles_print_no_emoji_for_names():
    for console in (render.console, render.notices):
        with console.capture() as captured:
            console.print("clicks:one", markup=False)
        assert captured.get().strip() == "clicks:one"
