#!/usr/bin/env bash
# The bundled runbook `first-look` in bash and jq: exit status 0 nobody is accused, 10 somebody is.
#
#   docs/scripts/first-look.sh JOB
set -euo pipefail

job=${1:?"which job?"}

kair info "$job"
triage=$(kair triage "$job" --json --quiet)
jq --raw-output '.data.summary, .data.findings[].evidence[].sentence' <<<"$triage"
verdict=$(jq --raw-output '.data.verdict' <<<"$triage")
culprit=$(jq --raw-output '.data.findings[0].ranks[0] // empty' <<<"$triage")

if [[ $verdict == straggler && -n $culprit ]]; then
    kair rank "$job" --rank "$culprit"
    kair pinpoint "$job" --rank "$culprit"
    kair blame "$job" --step last
fi
if [[ $verdict != straggler ]]; then
    kair localize "$job"
fi
kair whatif "$job"
[[ $verdict != straggler ]] || exit 10
