# An office's machine, empty but for Debian and systemd: what a customer types from the first package to the last, each command with the
# seconds it takes. Given: OLD and NEW, the versions whose packages lie beside this script; BUCKET, S3_PORT and DYNAMODB_PORT on HOST.
. ./lib.sh

# typed SENTENCE 'COMMAND': as a customer types it.
typed() {
  echo "\$ $2"
  began=$(cut -d' ' -f1 /proc/uptime)
  check "$1" sh -c "$2"
  ended=$(cut -d' ' -f1 /proc/uptime)
  echo "  $(echo "$began $ended" | awk '{printf "%.1f", $2 - $1}') s"
}
# holds SENTENCE 'COMMAND': what is so afterwards.
holds() { check "$1" sh -c "$2"; }
# listening PORT UNIT: a command that waits until the unit does.
listening() {
  echo "bash -c 'for _ in \$(seq 150); do (: < /dev/tcp/127.0.0.1/$1) 2> /dev/null && exit; sleep 0.2; done; journalctl -u $2 --no-pager | tail; exit 1'"
}
deb() { ls "$PWD/$1"_"$2"_*.deb; }
# All files that somebody installed or wrote, but for what every machine writes by itself.
files() {
  find / -xdev \( -path /tmp -o -path /var/log -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/systemd \
    -o -path /var/lib/private -o -path /var/lib/nfs -o -path /root -o -path /var/backups \) -prune -o \( -type f -o -type l -o -type d \) -print | sort
}
status_of() { sed -n "s/^$2:[[:space:]]*//p" "/proc/$1/status"; }
edge_pid() { systemctl show --value --property=MainPID firn-edge.service; }

# The cloud, which the edge believes to be on this machine: requests in the clear are refused to anywhere else.
proxy() { # NAME PORT
  printf '[Socket]\nListenStream=127.0.0.1:%s\n' "$2" > "/run/systemd/system/$1.socket"
  printf '[Service]\nExecStart=/lib/systemd/systemd-socket-proxyd %s:%s\n' "$HOST" "$2" > "/run/systemd/system/$1.service"
}
proxy cloud-store "$S3_PORT"
proxy cloud-table "$DYNAMODB_PORT"
must systemctl daemon-reload
must systemctl start cloud-store.socket cloud-table.socket
files > /tmp/files.before

echo "== install"
typed "edge and command line are installed with nothing but what the machine has" "apt-get install -q -y --no-install-recommends $(deb firn-edge "$OLD") $(deb firn "$OLD")"
holds "files are as the packages say" "test -z \"\$(dpkg --verify firn-edge firn)\""
holds "the service waits for its configuration: not enabled, not started" "! systemctl is-enabled -q firn-edge && ! systemctl is-active -q firn-edge"
holds "manual pages and completions are where shells look" \
  "zcat /usr/share/man/man8/firn-edge-takeover.8.gz /usr/share/man/man1/firn-volume-create.1.gz > /dev/null && for shell in firn-edge firn; do bash -n /usr/share/bash-completion/completions/\$shell || exit 1; done"
holds "the unit is one that systemd takes without a word" "test -z \"\$(systemd-analyze verify /usr/lib/systemd/system/firn-edge.service 2>&1)\""
typed "the configuration as it is installed is one that the program takes" "runuser -u firn -- firn-edge check-config"

echo "== set up"
store="s3://$BUCKET/firn?region=eu-central-1\&endpoint=http://127.0.0.1:$S3_PORT"
anchor="dynamodb://firn?region=eu-central-1\&endpoint=http://127.0.0.1:$DYNAMODB_PORT\&create=true"
sed -i -e "s,^store = .*,store = \"$store\"," -e "s,^anchor = .*,anchor = \"$anchor\"," -e 's,^clients = .*,clients = ["127.0.0.0/8"],' \
  -e 's,^grace_seconds = .*,grace_seconds = 5,' -e 's,^disk_cache = .*,disk_cache = "256 MiB",' -e 's,^journal = .*,journal = "256 MiB",' \
  /etc/firn/firn-edge.toml
printf 'AWS_ACCESS_KEY_ID=firntest\nAWS_SECRET_ACCESS_KEY=firntest\n' > /etc/firn/credentials
chmod 600 /etc/firn/credentials
typed "whether machine and cloud are fit is said before the first client" \
  "systemd-run -q --wait --pipe -p User=firn -p EnvironmentFile=/etc/firn/credentials -p AmbientCapabilities=CAP_NET_BIND_SERVICE firn-edge check > /tmp/checked; ended=\$?; cat /tmp/checked; test \$ended = 0 || test \$ended = 7"
holds "with the bucket's figures, and nothing against ports, clock and table" \
  "grep -q '^fine *bucket .* put .* ms' /tmp/checked && for subject in port clock anchor; do grep -q \"^fine *\$subject\" /tmp/checked || exit 1; done"
typed "a volume is made, by the user of the service" \
  "systemd-run -q --wait --pipe -p User=firn -p EnvironmentFile=/etc/firn/credentials firn-edge format --phrase-file /var/lib/firn/phrase --root-mode 1777"
typed "the service starts, and tells systemd when it serves" "systemctl enable -q --now firn-edge"
holds "it serves" "systemctl is-active -q firn-edge"
# nolock: the kernel's client would tell the port mapper of this machine that its own lock manager is the edge's.
typed "a Linux client mounts" "mkdir /mnt/firn && mount -t nfs -o vers=3,hard,nolock localhost:/export /mnt/firn"
mkdir /tmp/copy
for n in 1 2 3 4; do head -c 3000000 /dev/urandom > /tmp/copy/$n; done
typed "and writes" "cp /tmp/copy/* /mnt/firn/ && sync -f /mnt/firn"
typed "everything is in the cloud" "runuser -u firn -- firn-edge sync"
holds "status is for the service's user" "runuser -u firn -- firn-edge status"

echo "== how it runs"
pid=$(edge_pid)
holds "as a user of its own" "test \"\$(ps -o user= -p $pid 2> /dev/null || stat -c %U /proc/$pid)\" = firn"
holds "with one capability, that of low ports" "test $(status_of "$pid" CapEff) = 0000000000000400 && test $(status_of "$pid" CapBnd) = 0000000000000400"
holds "without new privileges" "test $(status_of "$pid" NoNewPrivs) = 1"
holds "under a filter of system calls" "test $(status_of "$pid" Seccomp) = 2"
holds "with the memory that the unit allows" "test \"\$(systemctl show --value -p MemoryMax firn-edge)\" = 1073741824"
holds "it can write to its state and nowhere else" \
  "awk '\$5 == \"/\" && \$6 ~ /(^|,)ro(,|\$)/ { root = 1 } \$5 == \"/var/lib/firn\" && \$6 ~ /(^|,)rw(,|\$)/ { state = 1 } END { exit !(root && state) }' /proc/$pid/mountinfo"
holds "it does not see the homes of people" "test -z \"\$(nsenter -t $pid -m ls -A /root)\""
exposure=$(systemd-analyze security --no-pager firn-edge.service | sed -n 's/.*Overall exposure level for firn-edge.service: \([0-9.]*\) .*/\1/p')
echo "  systemd-analyze security: $exposure"
holds "systemd-analyze calls it well confined (below 3)" "test -n \"$exposure\" && awk 'BEGIN { exit !($exposure < 3) }'"

echo "== it dies"
restarts=$(systemctl show --value -p NRestarts firn-edge)
[ "$pid" != 0 ] || { echo "FAILED the edge does not run: there is nothing to go on with"; journalctl -u firn-edge --no-pager | tail -30; exit 1; }
must kill -9 "$pid"
typed "systemd starts it again, and the client goes on" "cmp /tmp/copy/1 /mnt/firn/1 && echo more > /mnt/firn/more && sync -f /mnt/firn"
holds "once" "test \$(systemctl show --value -p NRestarts firn-edge) = $((restarts + 1))"

echo "== a wrong configuration"
cp /etc/firn/firn-edge.toml /tmp/right.toml
sed -i 's,^nfs_port = .*,nfs_port = 111,' /etc/firn/firn-edge.toml
pid=$(edge_pid)
typed "a new version comes under a configuration that it refuses" "apt-get install -q -y --no-install-recommends $(deb firn-edge "$NEW") 2>&1 | tee /tmp/said"
holds "says so" "grep -q 'refuses the configuration' /tmp/said && grep -q 'nfs_port' /tmp/said"
holds "and leaves the old program serving" "test $(edge_pid) = $pid && ls /mnt/firn > /dev/null"
cp /tmp/right.toml /etc/firn/firn-edge.toml

echo "== upgrade"
typed "the new program says what it can serve, before it is installed" \
  "dpkg-deb -x $(deb firn-edge "$NEW") /tmp/newer && runuser -u firn -- /tmp/newer/usr/bin/firn-edge upgrade --check --offline"
(
  n=0
  while [ ! -e /tmp/enough ]; do
    n=$((n + 1))
    echo "$n" > /mnt/firn/counted && sync -f /mnt/firn && echo "$n" > /tmp/counted || { echo "write $n failed" > /tmp/writer.failed; break; }
  done
) &
typed "with the right one it takes the place of the old one, while a client writes" "dpkg-reconfigure firn-edge 2> /dev/null || apt-get install -q -y --reinstall --no-install-recommends $(deb firn-edge "$NEW")"
before=$(cat /tmp/counted)
for _ in $(seq 300); do [ "$(cat /tmp/counted)" -gt $((before + 3)) ] && break; sleep 0.2; done
touch /tmp/enough
wait
holds "the client went on, and was told of nothing" "test ! -e /tmp/writer.failed && test \$(cat /tmp/counted) -gt $((before + 3))"
holds "another process serves" "test $(edge_pid) != $pid"
holds "what the administrator wrote is kept" "cmp /tmp/right.toml /etc/firn/firn-edge.toml"
holds "every byte is there" "for n in 1 2 3 4; do cmp /tmp/copy/\$n /mnt/firn/\$n || exit 1; done; cmp /tmp/counted /mnt/firn/counted"

echo "== power is lost in the middle of an upgrade"
pid=$(edge_pid)
typed "the program is unpacked, and nothing more was done" "dpkg --unpack $(deb firn-edge "$NEW")"
must kill -9 "$pid"
holds "the client goes on" "cmp /tmp/copy/1 /mnt/firn/1 && echo again > /mnt/firn/more && sync -f /mnt/firn"
holds "dpkg says what is half done" "dpkg --audit | grep -q firn-edge"
typed "and ends it" "dpkg --configure -a"
holds "nothing is left to do, and it serves" "test -z \"\$(dpkg --audit)\" && systemctl is-active -q firn-edge && cmp /tmp/copy/2 /mnt/firn/2"

echo "== the disk is full at an upgrade"
# Programs are on a file system of their own, and there is no room for a second one of the edge's.
pid=$(edge_pid)
again="apt-get install -q -y --reinstall --no-install-recommends $(deb firn-edge "$NEW")"
as_it_was() { echo "test -z \"\$(dpkg --audit)\" && dpkg --verify firn-edge && test $(edge_pid) = $pid && cmp /tmp/copy/1 /mnt/firn/1 && echo full > /mnt/firn/more && sync -f /mnt/firn"; }
must mkdir /tmp/small
must mount -t tmpfs -o size=$(($(du -sk /usr/bin | cut -f1) + 8192))k tmpfs /tmp/small
must cp -a /usr/bin/. /tmp/small/
must mount --bind /tmp/small /usr/bin
holds "it is refused" "! $again > /tmp/said 2>&1"
holds "in one line that says what is safe and what to do" "grep '^firn-edge: .* MiB free, and this takes .*: free space, then run the same command again. Nothing was changed' /tmp/said || { cat /tmp/said; exit 1; }"
holds "nothing is half done: the old program serves, and the client writes" "$(as_it_was)"
holds "upgrade --check says so before" "runuser -u firn -- firn-edge upgrade --check --offline | grep '^will hurt *program .*free space first'"
# As much as is wanted is free, and it is found out in the middle of unpacking that it cannot be had.
must mount -o "remount,size=100%,nr_inodes=$(($(find /tmp/small | wc -l) + 1))" /tmp/small
holds "dpkg finds the disk full in the middle" "! $again > /tmp/said 2>&1"
holds "and says so" "grep -q 'No space left on device' /tmp/said || { cat /tmp/said; exit 1; }"
holds "it takes back what it did: the old program serves, and the client writes" "$(as_it_was)"
must mount -o remount,nr_inodes=0 /tmp/small
typed "with room the same command goes through" "$again"
holds "another process serves what was written" "test \$(systemctl show --value --property=MainPID firn-edge.service) != $pid && systemctl is-active -q firn-edge && grep -q full /mnt/firn/more && cmp /tmp/copy/2 /mnt/firn/2"
must umount -l /usr/bin
must umount -l /tmp/small
# What is started ten times in five minutes is not started any more, and here it is not the edge that ends.
must systemctl reset-failed firn-edge

echo "== a directory of this machine too"
mkdir -p /srv/files /etc/systemd/system/firn-edge.service.d
must cp /usr/share/doc/firn-edge/examples/firn-edge-mount.conf /etc/systemd/system/firn-edge.service.d/mount.conf
printf '\n[[mount]]\npath = "/srv/files"\n' >> /etc/firn/firn-edge.toml
chown firn /srv/files
typed "with the drop-in and a [[mount]]" "systemctl daemon-reload && systemctl restart firn-edge"
holds "the volume is mounted, as other programs see it" "mountpoint -q /srv/files && cmp /tmp/copy/2 /srv/files/2"
holds "and what is written there is seen by NFS clients" "echo local > /srv/files/local && cmp /srv/files/local /mnt/firn/local"

echo "== the cleaner"
typed "it and the services are installed" \
  "apt-get install -q -y --no-install-recommends $(deb firn-cleaner "$OLD") $(deb firn-anchor "$OLD") $(deb firn-api "$OLD") $(deb firn-blockd "$OLD")"
typed "half of the files are deleted" "rm /mnt/firn/3 /mnt/firn/4 && runuser -u firn -- firn-edge sync"
family=$(runuser -u firn -- firn-edge status --output json | tee /tmp/status.json | tr ',{' '\n\n' | sed -n 's/.*"family": *"\([0-9a-f]*\)".*/\1/p' | head -1)
sed -e "s,^family = .*,family = \"$family\"," -e "s,^store = .*,store = \"$store\"," -e "s,^anchor = .*,anchor = \"${anchor%%\\\\&create*}\"," \
  -e 's,^# grace_seconds = .*,grace_seconds = 1,' -e 's,^# cold_after_seconds = .*,cold_after_seconds = 0,' \
  /usr/share/doc/firn-cleaner/examples/firn-cleaner.toml > /etc/firn/firn-cleaner.toml
cp /etc/firn/credentials /etc/firn/cleaner-credentials
typed "a run, under its unit" "systemctl start firn-cleaner.service || { journalctl -u firn-cleaner --no-pager | tail -20; exit 1; }"
holds "reported what it did" "journalctl -u firn-cleaner --no-pager -o cat | grep -q '\"report\"'"
typed "its timer" "systemctl enable -q --now firn-cleaner.timer && systemctl list-timers --no-pager | grep firn-cleaner"

echo "== services"
holds "their units are such that systemd takes them without a word" \
  "test -z \"\$(cd /usr/lib/systemd/system && systemd-analyze verify firn-anchor.service firn-api.service firn-blockd@one.service firn-cleaner.service firn-cleaner.timer 2>&1)\""
typed "the control plane's secret" "runuser -u firn-api -- firn-api new-secret /var/lib/firn-api/secret"
typed "the control plane starts" "systemctl enable -q --now firn-api"
holds "and listens" "$(listening 7400 firn-api)"
cat > /etc/firn/firn-blockd-one.toml <<TOML
[cluster]
table = "redb:/var/lib/firn-blockd/table.redb"
secret = "/var/lib/firn-blockd/secret"
[node]
directory = "/var/lib/firn-blockd/one"
size = "256MiB"
listen = "127.0.0.1:7300"
TOML
typed "a cluster is set up" \
  "cd / && runuser -u firn-blockd -- sh -c 'mkdir /var/lib/firn-blockd/one && firn-blockd secret /var/lib/firn-blockd/secret && firn-blockd --config /etc/firn/firn-blockd-one.toml init --rows 8'"
typed "a disk node starts" "systemctl enable -q --now firn-blockd@one"
holds "and listens" "$(listening 7300 firn-blockd@one)"

echo "== remove"
must umount /mnt/firn
typed "the edge is removed" "apt-get remove -q -y firn-edge"
holds "nothing is mounted" "! mountpoint -q /srv/files"
holds "configuration and state are kept" "test -e /etc/firn/firn-edge.toml && test -d /var/lib/firn"
rm -r /etc/systemd/system/firn-edge.service.d /srv/files
typed "all is purged" "apt-get purge -q -y firn-edge firn firn-cleaner firn-anchor firn-api firn-blockd 2>&1 | tee /tmp/said"
holds "nothing of it runs" "! grep -l '^firn' /proc/[0-9]*/comm"
holds "it says that the state is left, and why" "grep -q '/var/lib/firn is left: its journal may hold data' /tmp/said"
rm -f /etc/firn/credentials /etc/firn/cleaner-credentials /etc/firn/firn-cleaner.toml /etc/firn/firn-blockd-one.toml
rmdir /mnt/firn
files > /tmp/files.after
holds "nothing is left but the state and the users who own it" \
  "comm -13 /tmp/files.before /tmp/files.after | grep -vE '^/var/lib/firn(-api|-anchor|-blockd)?(/|\$)|^/etc/(passwd|group|shadow|gshadow|subuid|subgid)-?\$|^/run/|^/etc/firn\$' > /tmp/left; ! test -s /tmp/left || { cat /tmp/left; exit 1; }"
finish
