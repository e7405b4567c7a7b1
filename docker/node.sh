#!/bin/sh
# node.sh NODES: be one of the nodes node-1 ... node-NODES, whose kits lie in /kits/nodes. It takes a kit that no other
# container holds, the one that this container had before if it can, and becomes `bouquet node`.
set -eu
umask 077
cd /kits/nodes
nodes=$1
me=$(cat /etc/hostname)

be() {  # returns if another container holds this kit
    exec 9>>"$1/holder"
    flock --nonblock 9 || return 0
    echo "$me" >"$1/holder"
    ln -sfn "$PWD/$1" /tmp/kit # where the health check and whoever looks in find it
    exec bouquet node "$PWD/$1" --partition "$((${1#node-} - 1))/$nodes"
}

for kit in $(grep -lsx "$me" node-*/holder | xargs -r dirname) $(seq -f node-%g "$nodes"); do
    be "$kit"
done
echo "node.sh: other containers hold all $nodes kits (NODES=$nodes). For one more node: NODES=$((nodes + 1)) docker compose up --detach" >&2
exit 1
