"""Which functions of the package run while batches follow one another."""
