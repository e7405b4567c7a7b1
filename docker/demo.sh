#!/bin/sh
# The demo of docker/README.md: docker/demo.sh [RESULTS] starts the stack, runs ten clients on its nodes, puts the
# result folder into RESULTS/docker-demo, and takes the stack down; its volumes stay.
set -eu
results=${1:-runs}
compose=$(docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
stack="$compose -f $(dirname "$0")/compose.yaml"
trap '$stack down' EXIT
trap 'exit 1' INT TERM
$stack up -d
nodes=$($stack ps -q node | wc -l)
$stack exec -T link bouquet run --link /kit --recipe demo --run-name demo --overwrite -c "min-nodes=$nodes"
mkdir -p "$results"
rm -rf "$results/docker-demo"
docker cp "$($stack ps -q link):/kit/runs/demo" "$results/docker-demo"
echo "results: $results/docker-demo/report.html"
