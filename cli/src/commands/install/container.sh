#!/bin/sh
# Makes a machine with podman or docker the edge {{comment}}, and says what its clients mount. Printed by `firn edge install`; it holds no
# secret. Copy it there and run it as root; it asks for the join secret, or reads it: sh THIS-FILE < SECRET-FILE
# It can be run again after anything: what is done stays done, and a configuration that was changed is kept.
(
set -eu
name={{name}} edge={{edge}} packages={{packages}} state=/var/lib/firn configuration=/etc/firn/firn-edge.toml
step() { printf '\n== %s\n' "$1"; }
stop() { printf '\nfirn edge install: %s\n' "$1" >&2; exit 1; }
[ "$(id -u)" = 0 ] || stop "run it as root"
engine=$(command -v podman || command -v docker) || stop "neither podman nor docker is here"

step "image"
directory=$(cd "$packages" && pwd) || stop "there is no directory $packages; name the one with the image: firn edge install … --packages DIRECTORY"
[ -e "$directory/firn-edge.oci.tar" ] || stop "no firn-edge.oci.tar in $directory; copy it there"
firn=$(command -v firn || echo "$directory/firn")
[ -x "$firn" ] || stop "the program firn is needed to join; copy it to $directory"
image=$("$engine" load -i "$directory/firn-edge.oci.tar" | sed -n 's/^Loaded image[^:]*: //p' | tail -n 1)
[ -n "$image" ] || stop "$engine did not load $directory/firn-edge.oci.tar"
echo "$image"

# As packaging/compose/compose.yaml has it. The user in the image is 65532.
contained() { # OPTION… -- ARGUMENT…
  options=
  while [ "$1" != -- ]; do options="$options $1"; shift; done
  shift
  [ ! -e /etc/firn/credentials ] || options="$options --env-file /etc/firn/credentials"
  # shellcheck disable=SC2086 # none of them has a space
  "$engine" run $options --read-only --cap-drop ALL --security-opt no-new-privileges --pids-limit 512 --memory 1g \
    --sysctl net.ipv4.ip_unprivileged_port_start=0 --tmpfs /run/firn:uid=65532,gid=65532,mode=0700 \
    -p 111:111 -p 111:111/udp -p 2049:2049 -p 20048:20048 -v $state:$state -v /etc/firn:/etc/firn:ro "$image" "$@" < /dev/null
}
edge() { contained --rm -- "$@"; }
check() { # WHAT-IS-SAFE
  # An edge that serves has the ports.
  [ -z "$("$engine" ps --quiet --filter name=firn-edge)" ] || return 0
  status=0
  edge check || status=$?
  [ $status = 0 ] || [ $status = 7 ] || stop "not fit yet. Do what stands behind \"To do\" ($configuration may be changed), and run this again. $1"
}

step "configuration"
mkdir -p /etc/firn $state
chown 65532:65532 $state
chmod 700 $state
if [ -e $configuration ]; then
  echo "$configuration was written before and is kept"
else
  cat > $configuration.new << 'CONFIGURATION'
{{configuration}}CONFIGURATION
  chmod 644 $configuration.new
  mv $configuration.new $configuration
fi
{{directories}}edge check-config || stop "mend $configuration, and run this again"

step "is this machine fit?"
check "The join secret was not used."

step "join"
if [ -e $state/enrolment.json ]; then
  grep -q "\"edge\":\"$edge\"" $state/enrolment.json || stop "this machine joined as another edge, whose state is in $state; take another machine"
  echo "it joined before"
else
  "$firn" {{join}} || stop "not joined; what to do is said above"
  chown -R 65532:65532 $state
fi

step "keys"
echo "Where it was invited, type now: firn edge approve $name"
{{enrol}}
step "is its way to the cloud fit?"
check "It has joined, and its clients wait for nothing yet."

step "service"
if [ -z "$("$engine" ps --quiet --filter name=firn-edge)" ]; then
  "$engine" rm firn-edge > /dev/null 2>&1 || :
  contained -d --name firn-edge --restart on-failure:5 --stop-timeout 120 -- run ||
    stop "it does not start: $engine logs firn-edge says why"
fi

step "clients"
host=$(hostname -f 2> /dev/null || hostname)
cat << CLIENTS
The edge serves. On its clients (Debian: apt-get install nfs-common), as root; not on this machine:

{{clients}}CLIENTS
)
