"""What grows with the number of tasks and executors."""
