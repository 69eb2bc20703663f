"""The table target: explicit costs."""
