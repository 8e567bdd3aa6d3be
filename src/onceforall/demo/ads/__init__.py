"""``onceforall demo ads``: a chain of four jobs that counts money, killed again and again, and its
ledger against the truth.

The jobs are those of ``examples/ad_events``, each a driver process of its own. What is here makes
the events (`generator`), computes what must come out of them (`truth`), runs and kills (`run`,
`faults`), reads the destinations (`destinations`) and compares (`ledger`).
"""
