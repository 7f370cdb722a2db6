"""Dealing an application's state out anew when its topics have other numbers of partitions (docs/state.md)."""
