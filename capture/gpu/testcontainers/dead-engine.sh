#!/bin/sh
# Prints what a run prints whose engine is dead, for ever: ten failed requests a second (or
# RATE). Ends at once on TERM, as a container's first process should.
# Usage: sh dead-engine.sh [RATE]
rate=${1:-10}
trap 'exit 0' TERM INT
url=http://127.0.0.1:30000/generate
why='{"error":{"type":"Service Unavailable","code":"no_available_workers"}}'
while :; do
  now=$(date '+%Y-%m-%d %H:%M:%S')
  i=0
  while [ "$i" -lt "$rate" ]; do
    i=$((i + 1))
    echo "[$now.000 rollout_manager] http_utils.py:227 - Error: Server error '503 Service Unavailable' for url '$url'"
    echo "For more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/503, retrying... (attempt 1/60, url=$url, response=$why)"
  done
  sleep 1
done
