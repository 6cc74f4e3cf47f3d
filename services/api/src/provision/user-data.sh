#!/bin/sh
# Makes this machine one disk node, which joins by itself. The secret in it is good for this node, once, and for an hour.
# The image has firn-blockd and root certificates (ca-certificates); the machine's own role opens
# the cluster's table, and no other.
set -eu
umask 077
directory=${FIRN_NODE_DIRECTORY:-/var/lib/firn/node}
mkdir -p "$directory/identity"
if [ ! -e "$directory/identity/peer.pem" ]; then
  printf '%s\n' '@JOIN_SECRET@' > "$directory/identity/join-secret"
fi
authority='@AUTHORITY@'
if [ -n "$authority" ]; then
  printf '%s\n' "$authority" > "$directory/identity/server-authority.pem"
fi
cat > "$directory/firn-blockd.toml" <<END
[cluster]
name = "@CLUSTER@"
table = "@TABLE@"

[service]
server = "@SERVER@"
tenant = "@TENANT@"
node = "@NODE@"

[node]
directory = "$directory"
size = "@SIZE@ B"
domain = "@DOMAIN@"
listen = "${FIRN_NODE_LISTEN:-0.0.0.0:7300}"
advertise = "${FIRN_NODE_ADVERTISE:-$(hostname -I 2> /dev/null | cut -d' ' -f1):7300}"
END
exec "${FIRN_BLOCKD:-firn-blockd}" --config "$directory/firn-blockd.toml" node
