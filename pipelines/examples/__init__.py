"""Applications to run and to copy from. Nothing here is imported by the rest of Weir."""
