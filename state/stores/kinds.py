"""The store that fits a spec, for code that handles stores of every kind."""

from __future__ import annotations

from weir.state.engine.contract import StateView
from weir.state.stores.access import StoreTime
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.session import SessionStore
from weir.state.stores.versioned import VersionedStore
from weir.state.stores.window import WindowStore
from weir.state.types import StoreKind, StoreSpec

AnyStore = KeyValueStore | WindowStore | SessionStore | VersionedStore

_STORES: dict[StoreKind, type[AnyStore]] = {
    StoreKind.KEY_VALUE: KeyValueStore,
    StoreKind.WINDOW: WindowStore,
    StoreKind.SESSION: SessionStore,
    StoreKind.VERSIONED: VersionedStore,
}


def store_of(spec: StoreSpec, view: StateView, time: StoreTime | None = None) -> AnyStore:
    """A store of the kind that ``spec`` names, over a session or view."""
    return _STORES[spec.kind](spec, view, time)
