#!/bin/sh
# Build the image: docker/build.sh [IMAGE]. BASE, TORCH_INDEX, INDEX and EXTRAS are taken from the environment, and
# certificates that the owner of this machine added to its own are trusted by the build, not by the image.
set -eu
image=${1:-bouquet:local}
ca=${EXTRA_CA:-$(cat /usr/local/share/ca-certificates/*.crt 2>/dev/null || true)}
cd "$(dirname "$0")/.."
docker build --file docker/Dockerfile --tag "$image" ${BASE:+--build-arg "BASE=$BASE"} \
    ${TORCH_INDEX+--build-arg "TORCH_INDEX=$TORCH_INDEX"} --build-arg "INDEX=${INDEX:-}" ${EXTRAS+--build-arg "EXTRAS=$EXTRAS"} --build-arg "EXTRA_CA=$ca" .
