"""Sinks outside the warehouse, as a program declares them: what rows leave for them, and in which form."""
