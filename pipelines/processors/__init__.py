"""Processors: user code that gets records one at a time or in batches, keeps state, sets timers and forwards records."""
