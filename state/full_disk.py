"""Tells that a disk is full from other errors."""

from __future__ import annotations

import errno

import polars as pl
from deltalake.exceptions import DeltaError

_CODES = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException) -> bool:
    """Whether writing failed because the disk is full; polars and delta-rs give the error number only in their text."""
    if isinstance(error, OSError) and error.errno in _CODES:
        return True
    is_theirs = isinstance(error, (OSError, pl.exceptions.PolarsError, DeltaError))
    return is_theirs and any(f"(os error {code})" in str(error) for code in _CODES)
