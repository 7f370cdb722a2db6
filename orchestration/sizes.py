"""Sizes as people read them in the UI; metadata that Dagster plots stays in bytes, and says so in its name."""

MIB = 1 << 20


def size_text(size_bytes: int) -> str:
    """``640 bytes``, ``32.0 MiB``."""
    return f"{size_bytes / MIB:,.1f} MiB" if size_bytes >= MIB else f"{size_bytes:,} bytes"
