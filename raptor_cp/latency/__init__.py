"""Latency mode: list scheduling of one inference under weight capacity."""
