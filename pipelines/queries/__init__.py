"""Queries: what is asked of a store, and how it is asked of tasks on this host and on the executors of a cluster."""
