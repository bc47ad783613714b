#!/bin/sh
# A lock over HTTP with curl: acquire, renew in the background, work under the token, release.
#
#   ./curl.sh orders/42          (TENURE_SERVICE, default http://127.0.0.1:7420; needs curl and jq)
set -eu
service=${TENURE_SERVICE:-http://127.0.0.1:7420}
claim=$(jq -n --arg name "$1" --arg owner "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')" \
    --arg claim "$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')" '{$name, $owner, $claim}')

# post PATH MORE: the claim with more fields. What fails is not repeated here: see the clients for that.
post() {
    printf '%s' "$claim" | jq -c ". + $2" |
        curl -sS --fail-with-body --max-time 60 -H 'content-type: application/json' -d @- "$service$1"
}

token=null
while [ "$token" = null ]; do
    answer=$(post /v1/acquire '{ttl_ms: 10000, wait_ms: 50000, queue: true, label: "curl example"}') || {
        case $(printf '%s' "$answer" | jq -r '.kind // "unavailable"') in
        unavailable | too_many) sleep 1 ;; # again, with the same owner and claim: the same place in the queue
        *) printf '%s\n' "$answer" >&2; exit 69 ;;
        esac
        continue
    }
    token=$(printf '%s' "$answer" | jq .token) # null: it still waits
done
# It may have been waited for longer than it lasts: renew before the work begins.
post /v1/renew '{ttl_ms: 10000}' >/dev/null
worker=$$
# Two renewals may fail before the ttl is over; the third stops the work.
(
    failed=0
    while sleep 3; do
        if post /v1/renew '{ttl_ms: 10000}' >/dev/null 2>&1; then failed=0; else failed=$((failed + 1)); fi
        if [ "$failed" -ge 2 ]; then kill -TERM "$worker"; fi
    done
) &
watchdog=$!
trap 'kill "$watchdog" 2>/dev/null; post /v1/release "{}" >/dev/null' EXIT
trap 'echo "the lease is lost" >&2; exit 76' TERM

echo "working under token $token"
sleep 2
echo done
