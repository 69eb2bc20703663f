"""The processing-element target (ADR-0064)."""
