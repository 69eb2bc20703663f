"""Latency mode: PEFT and its capacity-aware recovery."""
