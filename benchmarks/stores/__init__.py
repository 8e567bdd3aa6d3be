"""What a checkpoint on a store costs."""
