"""The package ``benchmarks`` lies at the root of the repository, beside ``tests``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
