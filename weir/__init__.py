"""Weir: event-time stream processing in Python. Further public names are in ``weir.testing`` and ``weir.dagster``.

They are loaded on first use, so that a worker or a server can import ``weir.state`` or ``weir.infra`` without them.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weir.api import *

    __version__: str
else:

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return metadata.version("weir-streams")
        api = import_module("weir.api")
        if name != "__all__" and name not in api.__all__:
            raise AttributeError(f"module 'weir' has no attribute {name!r}")
        return getattr(api, name)

    def __dir__() -> list[str]:
        return [*import_module("weir.api").__all__, "__version__"]
