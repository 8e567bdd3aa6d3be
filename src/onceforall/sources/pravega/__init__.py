"""The Pravega source (extra ``pravega``: grpcio and protobuf)."""
