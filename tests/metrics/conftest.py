"""Lets the tests here import `synthetic_runs` beside them (the tests are no package)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
