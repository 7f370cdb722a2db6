"""A terminal for tests that type commands."""

from __future__ import annotations

import pytest

from tests.pipelines.cli.typed import Terminal, opened


@pytest.fixture
def terminal(tmp_path, monkeypatch) -> Terminal:
    return opened(tmp_path, monkeypatch)
