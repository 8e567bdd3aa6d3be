"""How long it takes after ``kill -9`` until a reader is shown new records."""
