"""What touches Spark's JVM or Spark's own files: plans, row hashes, errors, the checkpoint's
offsets and commits. Nothing else calls py4j.
"""
