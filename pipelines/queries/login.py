"""How the two sides of a query prove to each other that they have the server's token, which is never sent.

Each proves it for a number that the other has just made up, first the server: whoever listens at the port of a server
that has ended learns nothing, and is not believed. A call then carries a proof of its own.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any

from pyarrow import flight

_BYTES = 32


def proof(token: str, what: bytes, *numbers: bytes) -> bytes:
    """That whoever made it has ``token``."""
    return hmac.digest(token.encode(), b"\0".join((what, *numbers)), "sha256")


class ServerLogin(flight.ServerAuthHandler):  # type: ignore[misc]
    """Lets those in who have ``token``."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        theirs, ours = incoming.read(), secrets.token_bytes(_BYTES)
        outgoing.write(ours + proof(self._token, b"server", theirs, ours))
        if not hmac.compare_digest(incoming.read(), proof(self._token, b"client", theirs, ours)):
            raise flight.FlightUnauthenticatedError("wrong token")

    def is_valid(self, token: bytes) -> bytes:
        number, proved = token[:_BYTES], token[_BYTES:]
        if len(number) != _BYTES or not hmac.compare_digest(proved, proof(self._token, b"call", number)):
            raise flight.FlightUnauthenticatedError("wrong token")
        return b""


class ClientLogin(flight.ClientAuthHandler):  # type: ignore[misc]
    """Logs in to a server that has ``token``, too."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token, self._number = token, secrets.token_bytes(_BYTES)

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        ours = secrets.token_bytes(_BYTES)
        outgoing.write(ours)
        answer = incoming.read()
        theirs, proved = answer[:_BYTES], answer[_BYTES:]
        if not hmac.compare_digest(proved, proof(self._token, b"server", ours, theirs)):
            raise flight.FlightUnauthenticatedError("another server answers")
        outgoing.write(proof(self._token, b"client", ours, theirs))

    def get_token(self) -> bytes:
        return self._number + proof(self._token, b"call", self._number)
