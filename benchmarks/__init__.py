"""What exactly-once costs, measured beside what it is compared with, in one run.

``python -m benchmarks`` (``make bench``) runs measurements in turn for a given time, keeps each
result in ``build/bench/results.json``, goes on there the next time, and writes the page
``build/bench/performance.md``. Each measurement can be run alone: ``python -m
benchmarks.throughput.pipelines --help``.

The rules that all of them keep:

- *Interleaved.* A unit is one round of one measurement: all its contenders one after the other, on
  the same servers, with the same input. The order rotates from round to round. Only figures of one
  round are compared, as a ratio; the page shows the median of the ratios and their spread.
- *From outside.* Throughput is what a reader at ``read_committed`` is shown, latency is counted
  from the time at which a record was meant to be sent, CPU and memory are those of all processes.
  No contender is asked how fast it was.
- *Steady state.* Starts are left out of throughput and latency, and measured on their own
  (``recovery/``).
- *Same settings.* acks, compression, linger and batch size, consumer settings, cores and heap are
  the same, see ``settings.py``.

Where to look:

- What make runs: ``__main__.py`` (``make bench``), ``acceptance.py``, ``long_run.py`` (``make
  bench-long``). ``rounds.py`` says how any measurement is put together, and ``settings.py`` what
  all contenders share.
- What is measured: ``throughput/``, ``latency/``, ``recovery/``, ``options/`` (what a setting gives
  or costs), ``steps/`` (where the time goes) and ``ad_events/`` (the jobs of a pipeline). A module
  is a measurement, and runs alone.
- Who is measured, and by what: ``contenders/``, and ``stands/`` around them.
- What becomes of the figures: ``report/``.
"""
