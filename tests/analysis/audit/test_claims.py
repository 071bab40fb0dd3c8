"""Published rates compared with the logs, and invalid claims files."""

from __future__ import annotations

import pytest
from audited_run import made_baseline, made_run

from analysis.audit.audit import audit
from analysis.audit.claims import ClaimsError, parse_claims
from analysis.audit.evidence import Evidence


def test_a_claim_by_phase_timers_is_an_error():
    run, base = made_run(untimed=0.5), made_baseline(untimed=0.5)
    found = audit([Evidence.of(r, {"CV A-1": 80.0, "hivemind-1": 728.2}) for r in (base, run)])
    claims = {f.label: f for f in found if f.check == "published"}
    assert {f.severity for f in claims.values()} == {"error"}
    assert (
        "the rate by wall clock is 40 (+100.0%); it matches the rate by phase timers, 80"
        in claims["CV A-1"].sentence
    )
    assert "it matches the rate by phase timers, without averaging, 728" in claims["CV A-4"].sentence


def test_claim_confirmed_by_the_logs_is_no_finding():
    found = audit(
        [Evidence.of(made_run(), {"hivemind-1": 327.5}), Evidence.of(made_baseline(), {"CV A-1": 40.1})]
    )
    assert [f for f in found if f.check == "published"] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("run,rate\nCV A-1,3\n", "f.csv:1: no column 'sps'"),
        ("", "f.csv:1: no column 'run'"),
        ("run,sps\nCV A-1,3\nCV A-2,NaN\n", "f.csv:3: column 'sps' is 'NaN'"),
        ("run,sps\nCV A-1\n", "f.csv:2: column 'sps' is ''"),
        ("run,sps\n,3\n", "f.csv:2: column 'run' is empty"),
        ("run,sps\na,3\na,4\n", "f.csv:3: column 'run' contains a twice"),
        ("run,sps\na,-1\n", "is '-1', not a number above 0"),
    ],
)
def test_invalid_claims_file_error_names_the_line(text: str, says: str):
    with pytest.raises(ClaimsError) as caught:
        parse_claims(text, "f.csv")
    assert says in str(caught.value)


def test_a_file_of_claims():
    assert parse_claims("run,sps,page\nCV A-1,80.8,7\n", "f.csv") == {"CV A-1": 80.8}
