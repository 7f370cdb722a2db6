"""Applications to run and to copy from. Only the demo and the Dagster domains import them."""
