"""``onceforall demo``: real flights, real Kafka, ``kill -9``, and a count of what each sink lost and doubled.

The parts, from the inside out: `flights` reads the data set and makes the events; `truth` computes what must come out, without Spark, and
judges what did; `job` is the Spark program that is killed; `driver` starts and kills it; `feed` publishes the events; `observe` reads
progress from Spark's checkpoints; `run` takes one sink through all its kills; `report` and `page` show the result; `main` ties
them together. Nothing here is part of the library's public interface.
"""
