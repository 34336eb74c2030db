#!/bin/sh
# Prints what a busy engine makes a run print: ten failed requests a second for BURST seconds,
# then QUIET seconds of nothing, ROUNDS times; then it ends with status 0.
# Usage: sh bursting-engine.sh [BURST] [QUIET] [ROUNDS]
burst=${1:-60} quiet=${2:-120} rounds=${3:-3}
trap 'exit 0' TERM INT
url=http://127.0.0.1:30000/generate
why='{"error":{"type":"Service Unavailable","code":"no_available_workers"}}'
round=0
while [ "$round" -lt "$rounds" ]; do
  round=$((round + 1))
  second=0
  while [ "$second" -lt "$burst" ]; do
    second=$((second + 1))
    now=$(date '+%Y-%m-%d %H:%M:%S')
    i=0
    while [ "$i" -lt 10 ]; do
      i=$((i + 1))
      echo "[$now.000 rollout_manager] http_utils.py:227 - Error: Server error '503 Service Unavailable' for url '$url'"
      echo "For more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/503, retrying... (attempt 1/60, url=$url, response=$why)"
    done
    sleep 1
  done
  sleep "$quiet" &
  wait $!
done
