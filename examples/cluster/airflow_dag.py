"""UNTESTED: written by Airflow's documentation, never run. A query in runs that end
(``availableNow``), every ten minutes.

A run is started again while that helps; what needs a person fails the task at once, and a run that
was replaced is skipped. ``max_active_runs=1``, for two runs on one checkpoint replace each other.
"""

from __future__ import annotations

import subprocess
from datetime import datetime, timedelta, timezone

from airflow.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk import dag, task

RESTART, MEND, REPLACED = 75, 78, 79
COMMAND = ["/opt/numbers/installed.sh", "/opt/numbers/job.py", "hdfs://cluster/numbers", "--once"]


@dag(
    schedule=timedelta(minutes=10),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
)
def numbers() -> None:
    """The query numbers."""

    @task(retries=10, retry_delay=timedelta(seconds=30), retry_exponential_backoff=True)
    def run() -> None:
        code = subprocess.run(COMMAND, check=False).returncode
        if code == MEND:
            raise AirflowFailException("A person must mend something; see the log's last error.")
        if code == REPLACED:
            raise AirflowSkipException("Another run has taken over.")
        if code:
            raise AirflowException(f"It ended with {code}; a restart helps.")

    run()


numbers()
