"""The sinks of a world for ``onceforall detach --sinks chaos.detached:sinks``; the world's
folder is in ``CHAOS_CONFIG``."""

import json
import os
from pathlib import Path

from chaos.workload import DEFAULTS, sink


def sinks():
    config = {**DEFAULTS, **json.loads(Path(os.environ["CHAOS_CONFIG"]).read_text())}
    return {kind: sink(kind, config) for kind in config["sinks"]}
