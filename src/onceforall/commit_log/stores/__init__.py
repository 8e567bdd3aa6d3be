"""The kinds of store that a commit log can lie in, each with the guarantees of ``Store``."""
