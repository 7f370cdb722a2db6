"""Sensors: what an application does by itself when something happens, or warns of."""
