"""What a program says of a store beside its rows: whether it has a changelog, what becomes of it if it
is lost, and whether it is in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from weir.pipelines.errors import TopologyError
from weir.state.types import StoreSpec

OnLoss = Literal["empty"]


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Options of the store ``name``."""

    name: str
    logging: bool = True
    """Whether each commit adds the changes to a changelog. Without one, commits write less, and a store that survives
    goes on as any other."""
    in_memory: bool = False
    """Whether the rows are in memory instead of on disk. They survive a killed process, and are lost when the machine
    or its container restarts."""
    on_loss: OnLoss | None = None
    """What becomes of a store without a changelog whose rows on disk are lost. None: it is computed again from its
    topic, below the committed position. ``"empty"``: it begins empty there."""

    def __post_init__(self) -> None:
        if not isinstance(self.logging, bool):
            raise TopologyError(f"store {self.name!r}: logging is {self.logging!r}; it must be True or False")
        if not isinstance(self.in_memory, bool):
            raise TopologyError(f"store {self.name!r}: in_memory is {self.in_memory!r}; it must be True or False")
        if self.on_loss not in (None, "empty"):
            raise TopologyError(f'store {self.name!r}: on_loss is {self.on_loss!r}; it must be "empty" or left out')
        if self.logging and self.on_loss is not None:
            raise TopologyError(
                f"store {self.name!r} has a changelog, from which it is restored if it is lost; leave on_loss out, or "
                "add logging=False"
            )

    def applied(self, spec: StoreSpec) -> StoreSpec:
        """The spec of a store with these options."""
        return replace(
            spec,
            is_logged=self.logging,
            is_rebuilt=not self.logging and self.on_loss is None,
            is_in_memory=self.in_memory,
        )
