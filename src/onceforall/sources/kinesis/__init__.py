"""A source for Amazon Kinesis Data Streams; ``source.py`` says how it works and why."""
