"""Periodic analysis: event graphs, cycle ratio, queue engine, recurrence."""
