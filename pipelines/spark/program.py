"""Whether an executor of a cluster has the driver's program: its modules are compared by what is in their files."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType

_DIGITS = 16
_INSTALLED = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib"))
_OF_WEIR = ("weir", "__main__", "__mp_main__")
"""Weir is compared by its version; processes begin with different files."""


class OtherModuleError(Exception):
    """An executor has another program than the driver."""

    def __init__(self, module: str, reference: str) -> None:
        super().__init__(module, reference)
        self.module, self.reference = module, reference

    def __str__(self) -> str:
        return (
            f"the module {self.module!r} on {socket.gethostname()}, where an executor runs, is not the driver's; "
            f"install the same program on all hosts, or pack it again with `weir package {self.reference}`"
        )


def digests(reference: str) -> dict[str, str]:
    """By module, a hash of each file that is loaded of the package of ``MODULE:APP``, which has been imported, and of
    all others that are not installed with Python, as those in a folder beside it."""
    top = reference.partition(":")[0].partition(".")[0]
    named = [(name, module) for name, module in sorted(sys.modules.items()) if _is_own(name, module, top)]
    return {name: digest for name, module in named if (digest := _digest(module))}


def require_same(reference: str, wanted: Mapping[str, str]) -> None:
    """Compare what is loaded here with the driver's; what one of them alone has loaded says nothing.

    Raises:
        OtherModuleError: A module differs.
    """
    for name, digest in wanted.items():
        if name in sys.modules and (here := _digest(sys.modules[name])) and here != digest:
            raise OtherModuleError(name, reference)


def _is_own(name: str, module: ModuleType, top: str) -> bool:
    first, file = name.partition(".")[0], getattr(module, "__file__", None)
    if first == top or not file:
        return first == top
    return first not in _OF_WEIR and not file.startswith(_INSTALLED)


def _digest(module: ModuleType) -> str:
    """Of the module's source, also in an archive; empty if it has none."""
    file = getattr(module, "__file__", None)
    read = getattr(getattr(module, "__loader__", None), "get_data", None)
    if file and read is not None:
        with suppress(OSError):
            return hashlib.sha256(read(file)).hexdigest()[:_DIGITS]
    return ""
