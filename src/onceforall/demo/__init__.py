"""``onceforall demo``: real flights to real servers, ``kill -9``, and a count of what each writer
lost and doubled in each of three sinks.

The parts, from the inside out: `flights` reads the data set and makes the events; `truth` computes
what must come out, without Spark, and judges what did; `writers` are onceforall and Spark's own;
`job` is the Spark program that is killed; `driver` starts and kills it; `feed` publishes the
events; `observe` reads progress from Spark's checkpoints, and topics; `outputs` reads all three
sinks and finds what was left there; `onlooker` reads two of them all the while; `run` takes one
writer through all its kills, which gives an `outcome`; `report` and `page` show the result; `main`
ties them together. Nothing here is part of the library's public interface.
"""
