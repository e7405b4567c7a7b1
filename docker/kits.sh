#!/bin/sh
# kits.sh LINK_ADDRESS NODES: provision a federation of the nodes node-1 ... node-NODES, and put each kit into a volume.
# Volumes: /kits/authority keeps the authority, /kits/link gets the link's kit, /kits/nodes those of the nodes. What is
# there is kept. With more NODES than before it adds nodes, with fewer it revokes the last ones.
set -eu
umask 077
out=/kits/authority
link=$1
nodes=$2
[ "$nodes" -ge 1 ] 2>/dev/null || {
    echo "kits.sh: NODES: expected a number of nodes, at least 1; got '$nodes'" >&2
    exit 1
}

give() {  # kit.toml last: a kit without it is no kit
    mkdir -p "$2"
    for file in "$1"/*; do
        [ "${file##*/}" = kit.toml ] || cp -pR "$file" "$2"/
    done
    cp -p "$1"/kit.toml "$2"/
    sync
}

set --
for i in $(seq "$nodes"); do set -- "$@" --node "node-$i"; done
while [ -d "/kits/nodes/node-$((i += 1))" ]; do set -- "$@" --revoke "node-$i"; done
# Without its advice on copying kits to machines: the lines below do that.
bouquet provision --address "$link" "$@" --out "$out" >/tmp/made
grep -v '^next:' /tmp/made
if [ -e /kits/link/kit.toml ]; then
    cp -pR "$out"/link/server.crt "$out"/link/nodes "$out"/link/revoked /kits/link/
else
    give "$out"/link /kits/link
fi
for i in $(seq "$nodes"); do
    if [ -d "$out/node-$i" ]; then
        give "$out/node-$i" "/kits/nodes/node-$i"
        rm -r "$out/node-$i"
    fi
done
