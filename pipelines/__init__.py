"""The DSL, the topology that it describes, and what executes that; programs import its public names from ``weir``."""
