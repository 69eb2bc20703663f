"""Networks: operations, shapes and the built-in zoo."""
