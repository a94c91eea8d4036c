#!/usr/bin/env bash
# Runs the README's first command as written, asks one question, stops it, and checks that it went away.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
setsid bash -c "$(python3 tools/readme_command.py run)" >"$log" 2>&1 &
group=$!
stop() { kill -INT -- "-$group" 2>/dev/null || true; }
trap 'stop; rm -f "$log"' EXIT

url=http://127.0.0.1:8000
for _ in $(seq 600); do
  curl -sf "$url/health" >/dev/null && break
  kill -0 "$group" 2>/dev/null || { cat "$log"; echo "the server ended before it was ready"; exit 1; }
  sleep 0.5
done
answer=$(curl -sf "$url/v1/chat/completions" -H 'Content-Type: application/json' \
  -d '{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 24}')
echo "$answer"
case "$answer" in *Paris*) ;; *) cat "$log"; echo "no Paris in the answer"; exit 1 ;; esac

stop
for _ in $(seq 40); do
  kill -0 "$group" 2>/dev/null || { echo "served and stopped"; exit 0; }
  sleep 0.25
done
cat "$log"
echo "the server did not stop within 10 s of an interrupt"
exit 1
