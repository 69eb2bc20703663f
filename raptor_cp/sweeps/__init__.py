"""Sweeps: a grid of overrides over scenarios, resumable, one record a point."""
