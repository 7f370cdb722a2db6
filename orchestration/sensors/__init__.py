"""Sensors: they act on what happens to an application, or warn of it."""
