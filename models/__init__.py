"""CP-SAT models: proofs, bounds and seeds."""
