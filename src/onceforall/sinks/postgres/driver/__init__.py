"""What the driver alone does: checks at start, the turn at a table, the commit, and sweeps."""
