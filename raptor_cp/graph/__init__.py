"""Compute graphs: tasks, dependencies, resident weights, publications."""
