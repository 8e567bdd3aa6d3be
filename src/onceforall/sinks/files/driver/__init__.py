"""What the file sink does on the driver: it checks at start, and names, records and clears away
what the tasks wrote. No worker imports it.
"""
