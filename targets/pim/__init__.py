"""The PIM target."""
