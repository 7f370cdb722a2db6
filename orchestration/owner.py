"""How a driver that a Dagster run started signs its lease, so that the run is found again. No Dagster here."""

OWNER = "dagster run "


def owner_of(run_id: str) -> str:
    """The owner of the lease."""
    return f"{OWNER}{run_id}"


def run_of(owner: str) -> str | None:
    """The id of the run; None for a driver that no run started."""
    return owner.removeprefix(OWNER) if owner.startswith(OWNER) else None
