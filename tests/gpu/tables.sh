#!/bin/sh
# Cells of the published tables on a GPU that is at hand for some minutes, in the order of `--plan gpu`.
#   sh tests/gpu/tables.sh FOLDER [MINUTES [TABLE]]
# FOLDER outlives the machine: each minute it gets all runs as runs.tar, and the results as results.jsonl.
# Called with a folder that has them, it goes on. Add new lines of results.jsonl to task/recipes/tables/.
set -eu
folder=$1
minutes=${2:-8}
table=${3:-}
python=${PYTHON:-python3}
results=task/recipes/tables/results.jsonl
case $table in *.toml) results=$(dirname "$table")/results.jsonl ;; esac
work=$(mktemp -d)
mkdir -p "$folder" "$work/runs"
[ ! -e "$folder/runs.tar" ] || tar -xf "$folder/runs.tar" -C "$work"
if [ -e "$folder/results.jsonl" ]; then  # those of the last time that are not here yet
    touch "$results"
    grep -vxF -f "$results" "$folder/results.jsonl" >"$work/new" || true
    cat "$work/new" >>"$results"
fi
keep() {
    tar -cf "$folder/runs.tar.new" -C "$work" --exclude=.claims --exclude=logs runs
    mv "$folder/runs.tar.new" "$folder/runs.tar"
    [ ! -e "$results" ] || cp "$results" "$folder/results.jsonl"
}
(while sleep 60; do keep; done) >/dev/null 2>&1 &
saver=$!
code=0
# shellcheck disable=SC2086  # no table is no argument
"$python" -m server_app.cli.main reproduce $table --plan gpu --budget "${minutes}min" --runs-dir "$work/runs" || code=$?
kill $saver 2>/dev/null || true
keep
rm -r "$work"
exit $code
