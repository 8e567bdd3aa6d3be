"""The sinks, one module or package each, usable alone."""
