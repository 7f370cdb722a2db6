"""The example applications in Dagster, and a report downstream of one."""
