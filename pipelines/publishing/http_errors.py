"""Why a request got no answer, in words: what requests and urllib3 say of it are their own insides."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from http.client import HTTPException, RemoteDisconnected
from urllib.parse import urlsplit

import requests

_CLOSED = (RemoteDisconnected, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)


def reason_of(error: requests.RequestException, url: str, timeout_s: float) -> str:
    """What has happened to a request to ``url``."""
    *_, innermost = _causes(error)
    if isinstance(error, requests.exceptions.ProxyError):
        is_unknown = isinstance(innermost, socket.gaierror)
        return f"cannot connect to the proxy: {'cannot find its host' if is_unknown else _said(innermost)}"
    if isinstance(error, requests.Timeout) or isinstance(innermost, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(innermost, socket.gaierror):
        return f"cannot find the host {urlsplit(url).hostname}"
    return _said(innermost)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what caused it, which is an argument, an attribute or the cause of each."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        inside = (each for each in (*cause.args, getattr(cause, "reason", None)) if isinstance(each, BaseException))
        cause = next(inside, cause.__cause__)


def _said(cause: BaseException) -> str:
    match cause:
        case ConnectionRefusedError():
            return "connection refused"
        case ssl.SSLCertVerificationError():
            return f"the certificate of the server is not valid: {cause.verify_message.rstrip('.')}"
        case ssl.SSLError():
            return f"no TLS connection: {(cause.reason or str(cause)).replace('_', ' ').lower()}"
        case _ if isinstance(cause, _CLOSED):
            return "the server closed the connection without an answer"
        case HTTPException():
            return "the answer of the server is not HTTP"
        case OSError(strerror=str(text)):
            return text[:1].lower() + text[1:]
        case _:
            return str(cause) or type(cause).__name__
