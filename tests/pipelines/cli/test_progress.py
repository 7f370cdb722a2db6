"""Names and values are printed as they are."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

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


def test_consoles_print_no_emoji_for_names():
    for console in (render.console, render.notices):
        with console.capture() as captured:
            console.print("clicks:one", markup=False)
        assert captured.get().strip() == "clicks:one"
