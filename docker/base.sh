#!/bin/sh
# Make a base image for the Dockerfile from Debian's packages alone, where no registry can be reached:
#   docker/base.sh [IMAGE]        then: docker build --build-arg BASE=IMAGE -f docker/Dockerfile .
# An image of this name is kept; the packed root file system lies in the cache. SUITE and MIRROR choose the
# Debian (its python3 must be >= 3.11), ARCH its architecture: another machine's, such as arm64, needs
# qemu-user-static and binfmt-support here. It is the release as it stands, without the security updates of its
# other archive: where a registry can be reached, the Dockerfile's own default is the better base.
set -eu

image=${1:-bouquet-base:local}
suite=${SUITE:-trixie}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/bouquet-docker
arch=${ARCH:-$(dpkg --print-architecture)}
tar=$cache/$suite-$arch.tar

if docker image inspect "$image" >/dev/null 2>&1; then
    echo "$image"
    exit
fi
if [ ! -s "$tar" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "base.sh: expected to run as root, as debootstrap makes devices and owners; got uid $(id -u)" >&2
        exit 1
    fi
    command -v debootstrap >/dev/null || {
        echo "base.sh: installing debootstrap" >&2
        apt-get update -qq && apt-get install -qq -y --no-install-recommends debootstrap >/dev/null
    }
    mkdir -p "$cache"
    root=$(mktemp -d "$cache/root.XXXXXX")
    trap 'rm -rf "$root" "$tar.part"' EXIT
    trap 'exit 1' INT TERM
    chmod 755 "$root"
    debootstrap --arch "$arch" --variant=minbase --include=ca-certificates,python3,python3-venv \
        "$suite" "$root" ${MIRROR:+"$MIRROR"} >"$root.log" 2>&1 || {
        tail -n 20 "$root.log" >&2
        echo "base.sh: debootstrap failed; all that it said is in $root.log" >&2
        exit 1
    }
    rm -rf "$root.log" "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
        "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/info/* "$root"/usr/share/locale/*
    tar -C "$root" --numeric-owner -cf "$tar.part" .
    mv "$tar.part" "$tar"
fi
docker import --platform "linux/$arch" --change 'CMD ["/bin/sh"]' "$tar" "$image" >/dev/null
echo "$image"
