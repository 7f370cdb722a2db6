"""Processors: user code that gets records one by one or in batches, keeps state, sets timers, forwards records."""
