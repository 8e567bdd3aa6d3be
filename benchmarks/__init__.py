"""What exactly-once costs, measured beside what it is compared with, in one run.

``python -m benchmarks`` (``make bench``) runs measurements in turn for a given time, keeps each result in ``build/bench/results.json``, goes
on there the next time, and writes the page ``build/bench/performance.md``. Each measurement can be run alone: ``python -m
benchmarks.throughput.pipelines --help``.

The rules that all of them keep:

- *Interleaved.* A unit is one round of one measurement: all its contenders one after the other, on the same servers, with the same
  input. The order rotates from round to round. Only figures of one round are compared, as a ratio; the page shows the median of the ratios and their
  spread.
- *From outside.* Throughput is what a reader at ``read_committed`` is shown, latency is counted from the time at which a record was meant to be
  sent, CPU and memory are those of all processes. No contender is asked how fast it was.
- *Steady state.* Starts are left out of throughput and latency, and measured on their own (``recovery``).
- *Same settings.* acks, compression, linger and batch size, consumer settings, cores and heap are the same, see ``settings``.

The modules: ``settings`` and ``figures`` (pure), ``results`` (the file), ``processes`` and ``children`` (what is measured from /proc, and what is
started), ``kafka``, ``traffic`` (servers, topics, generator and reader), ``contenders`` (who runs), ``spark_job`` and ``flink_job`` (what they run), one module for
each measurement (that of a pipeline's jobs, ``ad_jobs``, has ``ad_stand``, ``ad_replay`` and ``ad_batches`` besides), ``page`` and ``charts``.
"""
