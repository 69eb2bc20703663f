"""Scheduling targets."""
