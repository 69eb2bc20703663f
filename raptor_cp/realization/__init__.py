"""Realization: a schedule becomes an execution plan."""
