#!/usr/bin/env bash
# The bundled runbook `nightly` in bash and jq: exit status 0 well, 10 a finding, else what went wrong.
#
#   docs/scripts/nightly.sh JOB [SLOWDOWN]
set -euo pipefail

job=${1:?"which job?"} slowdown=${2:-1.05}

info=$(kair info "$job" --json --quiet)
triage=$(kair triage "$job" --json --quiet)

findings=0
expect() { # DOCUMENT CONDITION [jq options]
    local document=$1 condition=$2
    shift 2
    if ! jq --exit-status "$@" "$condition" <<<"$document" >/dev/null; then
        echo "finding: not $condition" >&2
        findings=1
    fi
}

jq --raw-output '.data.summary' <<<"$triage"
expect "$info" '.data.missing_ranks == []'
expect "$triage" '.data.verdict != "inconclusive"'
expect "$triage" '(.data.findings[0].slowdown // 1) < $slowdown' --argjson slowdown "$slowdown"
exit $((findings * 10))
