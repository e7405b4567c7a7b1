#!/bin/sh
# What needs a GPU, in at most nine minutes: its tests, and the seconds of a round.
#   sh tests/gpu/run.sh [FOLDER [MODEL ...]]    results go to FOLDER, and the tests' words to its tests.log
set -u
folder=${1:-.}
[ $# -gt 0 ] && shift
python=${PYTHON:-python3}
files="tests/client_app/test_recurrent.py tests/client_app/test_graphs.py tests/client_app/test_precision.py
tests/client_app/test_loop.py tests/client_app/test_convolution.py tests/task/test_stack.py
tests/task/test_datasets.py tests/gpu/test_contexts.py"
timeout 60 "$python" -m tests.gpu.parts "$folder"
timeout 270 "$python" -m tests.gpu.rounds "$folder" "$@"
timeout 150 "$python" -m pytest -n 0 -q $files -k "gpu or cuda or graph or device" >"$folder/tests.log" 2>&1
code=$?
tail -5 "$folder/tests.log"
exit $code
