"""What each job of the ad-events pipeline can do, alone on the machine, beside the same job with
Spark's own writers.
"""
