#!/bin/sh
# kits.sh LINK_ADDRESS NODE...: provision a federation and put each machine's kit into that machine's volume.
# Volumes: /kits/authority keeps the authority, /kits/link and /kits/NODE get kits. What is there is kept, so
# run it again to add nodes. A node's private key is in its own volume only.
set -eu
umask 077
out=/kits/authority
link=$1
shift

give() {  # kit.toml last: a kit without it is no kit
    for file in "$1"/*; do
        [ "${file##*/}" = kit.toml ] || cp -pR "$file" "$2"/
    done
    cp -p "$1"/kit.toml "$2"/
    sync
}

# Without its advice on copying kits to machines: the lines below do that.
bouquet provision --link "$link" $(printf -- '--node %s ' "$@") --out "$out" >/tmp/made
grep -v '^next:' /tmp/made
if [ -e /kits/link/kit.toml ]; then
    cp -pR "$out"/link/server.crt "$out"/link/nodes "$out"/link/revoked /kits/link/
else
    give "$out"/link /kits/link
fi
for node in "$@"; do
    if [ -d "$out/$node" ]; then
        give "$out/$node" "/kits/$node"
        rm -r "${out:?}/$node"
    fi
done
