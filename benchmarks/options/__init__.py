"""What an option gives or costs: settings of Spark, the trigger interval, the state store,
``redo``, the order of partitions.
"""
