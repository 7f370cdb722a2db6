"""What Kafka takes as the name of a topic."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

TOPIC_NAME = "up to 249 letters, digits, dots, dashes and underscores"
"""The rule, for people."""


def is_topic_name(name: object) -> bool:
    """Whether a topic may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name not in (".", "..")
