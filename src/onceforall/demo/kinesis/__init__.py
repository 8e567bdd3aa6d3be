"""``onceforall demo kinesis``: from a stream that is resharded to a topic and to files, killed
again and again, and what both hold beside the truth.

`job` is the program that is killed, `feed` writes the stream and knows what must come out of it,
`main` runs and compares.
"""
