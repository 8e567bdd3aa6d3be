"""Speaks with Pravega: its controller by gRPC, its segment stores by their own protocol.

``pravega``, the client for Python, wraps the one for Rust, and lacks what exactly-once needs. A
transaction of it can't be flushed: ``write_event`` returns when the event is in its queue, and only
``commit`` waits for the answers, which another process can't do. It doesn't tell open, aborted and
forgotten transactions apart, and reads by reader groups alone, which keep positions of their own.

What is spoken is written down in Pravega's sources, release 0.13: ``Controller.proto``,
``WireCommands.java``, ``NameUtils.java`` and ``StreamSegments.java``.
"""
