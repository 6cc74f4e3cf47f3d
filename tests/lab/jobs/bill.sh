# Work of a kernel on two volumes of one edge that never stops, while the host kills one process of Firn after the other (docs/billing.md).
# Given by the driver: HOST, and KILLS, the processes in their order.
. ./lib.sh
for volume in files homes; do
  EXPORT=/$volume
  attach /mnt/$volume
done

# Overwrites a tree on each volume again and again until there is a file `enough`; what was acknowledged last is in /tmp/kept.
mkdir -p /tmp/kept
work() {
  round=0
  while [ ! -e /tmp/enough ]; do
    round=$((round + 1))
    for number in 1 2 3 4; do
      head -c 300000 /dev/urandom > /tmp/kept/$number.next
      for volume in files homes; do
        # Twice as much on one as on the other.
        [ $volume = homes ] && [ $((number % 2)) = 0 ] && continue
        cp /tmp/kept/$number.next /mnt/$volume/$number && sync -f /mnt/$volume/$number || { echo "FAILED a write to $volume"; exit 1; }
      done
      mv /tmp/kept/$number.next /tmp/kept/$number
    done
  done
  echo "ok $round rounds of writes went through"
}
work &
worker=$!
sleep 5
check "snapshots are made while clients write" python3 ./control.py admin snapshot
for process in $KILLS; do
  check "kill -9 of the $process: it comes again" python3 ./control.py admin kill "$process"
  sleep 10
done
touch /tmp/enough
check "the writer ends well" wait $worker
for number in 1 2 3 4; do
  check "what was written last is there" cmp /tmp/kept/$number /mnt/files/$number
done
# Tells the host how many calls the kernel sent for a mount, by its own account, retransmissions and all.
calls() {
  sent=$(python3 - "/mnt/$1" << 'END'
import re, sys
of_mount = next(part for part in open("/proc/self/mountstats").read().split("device ") if f" mounted on {sys.argv[1]} " in part)
operations = of_mount.split("per-op statistics")[1]
print(sum(int(sent) for sent in re.findall(r"^\s*\w+: \d+ (\d+)", operations, re.M)))
END
)
  must python3 ./control.py admin calls "$1" "$sent"
  must umount "/mnt/$1"
}
for volume in files homes; do
  calls $volume
  EXPORT=/$volume
  attach /mnt/$volume
  check "it is there for a client that has nothing in its cache" cmp /tmp/kept/1 /mnt/$volume/1
  calls $volume
done
finish
