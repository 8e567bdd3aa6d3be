"""What people and other programs do with a sink's folder, without its query: read what is
committed, and mend manifests that stop readers.
"""
