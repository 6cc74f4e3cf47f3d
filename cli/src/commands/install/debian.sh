#!/bin/sh
# Makes a Debian machine the edge {{comment}}, and says what its clients mount. Printed by `firn edge install`; it holds no secret.
# Copy it there and run it as root; it asks for the join secret, or reads it: sh THIS-FILE < SECRET-FILE
# It can be run again after anything: what is done stays done, and a configuration that was changed is kept.
(
set -eu
name={{name}} edge={{edge}} packages={{packages}} state=/var/lib/firn configuration=/etc/firn/firn-edge.toml
step() { printf '\n== %s\n' "$1"; }
stop() { printf '\nfirn edge install: %s\n' "$1" >&2; exit 1; }
# As the service will run: its user, its credentials, low ports.
as_service() {
  systemd-run --quiet --wait --pipe --collect -p User=firn -p EnvironmentFile=-/etc/firn/credentials \
    -p AmbientCapabilities=CAP_NET_BIND_SERVICE "$@" < /dev/null
}
check() { # WHAT-IS-SAFE
  status=0
  as_service firn-edge check || status=$?
  [ $status = 0 ] || [ $status = 7 ] || stop "not fit yet. Do what stands behind \"To do\" ($configuration may be changed), and run this again. $1"
}
[ "$(id -u)" = 0 ] || stop "run it as root"

step "packages"
if [ "$(dpkg-query --show --showformat='${db:Status-Status} ' firn-edge firn 2> /dev/null)" = "installed installed " ]; then
  firn-edge --version
else
  directory=$(cd "$packages" && pwd) || stop "there is no directory $packages; name the one with the packages: firn edge install … --packages DIRECTORY"
  for package in firn-edge firn; do
    set -- "$directory/${package}_"*.deb
    [ -e "$1" ] || stop "no ${package}_VERSION_ARCHITECTURE.deb in $directory; copy firn-edge_….deb and firn_….deb there"
    [ $# = 1 ] || stop "several versions of $package in $directory; leave one"
  done
  apt-get install -y --no-install-recommends "$directory"/firn-edge_*.deb "$directory"/firn_*.deb < /dev/null ||
    stop "the packages are not installed whole, and nothing else was done. If the disk is full: free space, then dpkg --configure -a, and run this again"
fi

step "configuration"
packaged=$(dpkg-query --show --showformat='${Conffiles}\n' firn-edge 2> /dev/null | sed -n "s,^ $configuration \([0-9a-f]*\).*,\1,p" || :)
if [ -e $configuration ] && [ "$packaged" != "$(md5sum < $configuration | cut -d' ' -f1)" ]; then
  echo "$configuration was written before and is kept"
else
  cat > $configuration.new << 'CONFIGURATION'
{{configuration}}CONFIGURATION
  chmod 644 $configuration.new
  mv $configuration.new $configuration
fi
{{directories}}runuser -u firn -- firn-edge check-config || stop "mend $configuration, and run this again"

step "is this machine fit?"
check "The join secret was not used."

step "join"
if [ -e $state/enrolment.json ]; then
  grep -q "\"edge\":\"$edge\"" $state/enrolment.json || stop "this machine joined as another edge, whose state is in $state; take another machine"
  echo "it joined before"
else
  runuser -u firn -- {{join}} || stop "not joined; what to do is said above"
fi

step "keys"
echo "Where it was invited, type now: firn edge approve $name"
{{enrol}}
step "is its way to the cloud fit?"
check "It has joined, and its clients wait for nothing yet."

step "service"
systemctl enable --now firn-edge || stop "it does not start: journalctl -u firn-edge says why"

step "clients"
host=$(hostname -f 2> /dev/null || hostname)
cat << CLIENTS
The edge serves. On its clients (Debian: apt-get install nfs-common), as root; not on this machine:

{{clients}}CLIENTS
)
