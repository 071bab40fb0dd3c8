"""Runs all checks over one or several runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from analysis.audit.clocks import mixed_clock, speedups
from analysis.audit.epochs import claimed, few_epochs, first_epoch
from analysis.audit.evidence import Evidence
from analysis.audit.findings import SEVERITIES, Finding
from analysis.audit.logs import (
    clocks_and_gaps,
    doubled_counters,
    importer_warnings,
    sample_sums,
    sync_rule,
)
from analysis.audit.monitor import monitor_gaps, monitor_missing, monitor_period, skipped_epochs
from analysis.audit.own import own_run
from analysis.audit.peers import peers, peers_seen
from analysis.audit.traffic import destinations, egress_fits, received_fits

CHECKS: tuple[Callable[[Evidence], list[Finding]], ...] = (
    mixed_clock,
    few_epochs,
    first_epoch,
    claimed,
    sync_rule,
    doubled_counters,
    peers,
    peers_seen,
    egress_fits,
    received_fits,
    destinations,
    monitor_missing,
    monitor_period,
    skipped_epochs,
    monitor_gaps,
    clocks_and_gaps,
    sample_sums,
    own_run,
    importer_warnings,
)


def audit_run(e: Evidence) -> list[Finding]:
    """Return the findings of one run, most severe first."""
    found = [finding for check in CHECKS for finding in check(e)]
    return sorted(found, key=lambda f: SEVERITIES.index(f.severity))


def audit(runs: Sequence[Evidence]) -> list[Finding]:
    """Return findings about several runs together, then each run's in the given order, most severe first."""
    across = speedups(runs)
    found = [f for f in across if f.run_id is None]
    for e in runs:
        own = [f for f in across if f.run_id == e.run_id] + audit_run(e)
        found += sorted(own, key=lambda f: SEVERITIES.index(f.severity))
    return found
