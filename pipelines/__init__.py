"""The DSL, the topology it describes and the code that executes it; programs import the public names from ``weir``."""
