"""What the file sink does in every store of objects: uploads that tasks prepare and the driver
completes. ``store.Store`` is what it asks of a store, and the packages beside this one have one
each: ``places.s3``, whose docstring has the argument.
"""
