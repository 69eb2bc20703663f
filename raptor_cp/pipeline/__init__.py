"""Pipeline mode: groups, packing, partition, budgets, placement, search."""
