"""What a task writes with: COPY and its encoding, and the transaction of an attempt in each
mode.
"""
