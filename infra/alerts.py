"""Sends a message to people: by e-mail, to Slack, to a webhook and whatever else Apprise knows a URL for."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec

_LOGGER = logging.getLogger("apprise")


class AlertError(Exception):
    """A message was sent to nobody; the text says why, without the URLs, which hold secrets."""


def send(urls: str, title: str, body: str) -> list[str]:
    """Send to each of ``urls``, which white space separates: ``mailto://``, ``slack://``, ``jsons://`` and so on.

    Returns a sentence for each target that did not take the message.

    Raises:
        AlertError: None took it, or Apprise is not installed.
    """
    if find_spec("apprise") is None:
        raise AlertError("alerts need Apprise: pip install 'weir-streams[alerts]'")
    apprise = import_module("apprise")
    failed, sent = list[str](), 0
    for number, url in enumerate(urls.split(), start=1):
        told = _Told()
        _LOGGER.addHandler(told)
        try:
            target = apprise.Apprise.instantiate(url)
            if target is None:
                failed.append(f"Apprise does not know URL {number} of alert_urls")
            elif not target.notify(title=title, body=body, body_format=apprise.NotifyFormat.TEXT):
                failed.append(f"{target.url(privacy=True).partition('?')[0]}: {told.last or 'did not take it'}")
            else:
                sent += 1
        finally:
            _LOGGER.removeHandler(told)
    if not sent:
        raise AlertError("; ".join(failed))
    return failed


class _Told(logging.Handler):
    """Keeps the last thing that Apprise warned of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()
