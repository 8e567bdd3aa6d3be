"""How brokers are reached: the options for TLS and SASL, their secrets, connections of our own,
and which right is missing.
"""
