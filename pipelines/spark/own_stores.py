"""The user's own stores that an application feeds after its commits (``Application(own_stores=...)``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weir.pipelines.application import Application
from weir.pipelines.spark.afterwards import Afterwards
from weir.state.changelog.following import Follower
from weir.state.storage.places import Place

FOLDER = "_own_stores"


def followers(application: Application, app_folder: Place, state_folder: Path) -> list[Follower]:
    """One for each of the application's own stores, opened in a folder of its own."""
    specs = {store.name: store for sub_topology in application.topology.sub_topologies for store in sub_topology.stores}
    opened = []
    for name, open_store in application.own_stores.items():
        folder = state_folder / FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        opened.append(Follower(app_folder, specs[application.topology.stored(name)], open_store(folder), folder))
    return opened


def feeding(stores: Sequence[Follower]) -> Afterwards[object]:
    """Brings the stores up to date, now and every time it is called."""

    def feed(_: object) -> None:
        for store in stores:
            store.follow()

    afterwards: Afterwards[object] = Afterwards("own stores", feed, Exception, "a store of your own could not follow")
    afterwards(None)
    return afterwards
