# The rows of bench.py on one of: a share over the kernel's SMB client (TARGET smb), or on this machine (a disk at /dev/ubdc) the disk itself (local),
# a volume that an edge here mounts (fuse), and the same edge's export over NFS on the loopback (nfs). Needs files.tar, bench.py, sample.py beside it, and
# firn-edge for the last two.
#
# Cold is: a new mount for clients of a server, and no clean page of any file system in memory.
cold='sync; echo 3 > /proc/sys/vm/drop_caches'
place=/mnt/place
mkdir -p $place /data
edge=
case "$TARGET" in
smb)
  for module in cifs nls_utf8; do modprobe $module || { echo "no module $module"; exit 1; }; done
  over="mount -i -t cifs //$HOST/files $place -o ip=$HOST,port=$PORT,username=alice,password=secret,vers=3.1.1,seal,mfsymlinks"
  cold="umount $place && $over; $cold"
  sh -c "$over" || { dmesg | tail -5; exit 1; }
  export BENCH_SAMPLE=yes BENCH_TAR_OPTIONS="--no-same-owner --no-same-permissions"
  ;;
local)
  mount -t ext4 /dev/ubdc $place || exit 1
  ;;
fuse | nfs)
  mount -t ext4 /dev/ubdc /data && modprobe fuse || exit 1
  mkdir /data/store
  cat > /data/firn-edge.toml <<TOML
[volume]
store = "file:///data/store"
anchor = "redb:/data/table.redb"
state_directory = "/data/state"
[nfs]
listen = "127.0.0.1"
nfs_port = 2049
mount_port = 20048
portmap = false
grace_seconds = 0
[[export]]
path = "/export"
clients = ["127.0.0.0/8"]
squash = "none"
$([ "$TARGET" = fuse ] && printf '[[mount]]\npath = "%s"\n' $place)
[metrics]
listen = "127.0.0.1:9120"
[log]
level = "warn"
TOML
  chmod +x ./firn-edge
  ./firn-edge --config /data/firn-edge.toml format --phrase-file /data/phrase > /data/log 2>&1 || { cat /data/log; exit 1; }
  ./firn-edge --config /data/firn-edge.toml run > /data/out 2> /data/log &
  edge=$!
  for _ in $(seq 600); do grep -q '^serving on' /data/out && break; kill -0 $edge || break; sleep 0.1; done
  grep -q '^serving on' /data/out || { cat /data/log; exit 1; }
  if [ "$TARGET" = nfs ]; then
    over="mount -t nfs -o vers=3,proto=tcp,mountproto=tcp,nolock,port=2049,mountport=20048 127.0.0.1:/export $place"
    cold="umount $place && $over; $cold"
    $over || exit 1
  fi
  export BENCH_SAMPLE="python3 $PWD/sample.py $edge 9120"
  ;;
esac
mkdir $place/bench || exit 1
export COLD="$cold"
python3 ./bench.py $place/bench ./files.tar
status=$?
[ -n "$edge" ] && { grep -E 'panicked|ERROR' /data/log; kill $edge; wait $edge; }
exit $status
