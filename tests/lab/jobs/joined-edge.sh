# What a tenant types, and what the kernel of a client sees of it: two volumes of one edge, a policy of snapshots, a disk, a hard cap, a rekey.
# Given by the driver: HOST; firn and firn-blockd, the tenant's profile and phrase. An edge called `office` serves projects and homes.
. ./lib.sh
chmod 700 firn firn-blockd
types() { ./firn --profile profile.json "$@"; }

# tells EXPRESSION COMMAND…: what the answer `a` of a command, as JSON, is by that expression of Python.
tells() {
  expression=$1
  shift
  types --output json "$@" > answer.json && python3 -c "import json; a = json.load(open('answer.json')); print($expression)"
}

# until_holds SENTENCE COMMAND…: tried twice a second for four minutes. A client works meanwhile: an idle edge has nothing to ask.
until_holds() {
  sentence=$1
  shift
  for _ in $(seq 480); do
    "$@" > /tmp/until.out 2>&1 && { echo "ok $sentence"; return; }
    echo "$sentence" >> /mnt/homes/work && sync -f /mnt/homes/work
    sleep 0.5
  done
  echo "FAILED $sentence (not within four minutes: $*)"
  head -c 3000 answer.json /tmp/until.out
  failures=$((failures + 1))
}

# is EXPRESSION COMMAND…
is() { [ "$(tells "$@")" = True ]; }
automatic() { ls "/mnt/$1/.snapshots" | grep '^auto-'; }

# Two volumes.
for volume in projects homes; do
  EXPORT=/$volume
  attach /mnt/$volume
  must sh -c "echo 'of $volume' > /mnt/$volume/only-in-$volume"
  must sync -f /mnt/$volume/only-in-$volume
done
check "two volumes of one edge share nothing" sh -c '! ls /mnt/homes/only-in-projects && ! ls /mnt/projects/only-in-homes'
serving() { is "sorted(v['state'] for v in a['observed']['volumes']) == ['serving', 'serving']" edge show office; }
until_holds "firn edge show says that it serves both" serving

# A policy of snapshots: of a new volume hours are kept, of homes nothing was.
until_holds "the policy of a new volume makes a snapshot" automatic projects
check "where the policy is to make none, there is none" sh -c '! ls /mnt/homes/.snapshots | grep auto-'
must sh -c 'echo before > /mnt/homes/ledger'
must sync -f /mnt/homes/ledger
must types snapshot policy homes --hourly 24
until_holds "a snapshot is there once the tenant has typed a policy" automatic homes
snapshot=$(automatic homes | head -1)
must sh -c 'echo after > /mnt/homes/ledger'
must sync -f /mnt/homes/ledger
check "it shows the kernel what was there when it was made" grep -qx before "/mnt/homes/.snapshots/$snapshot/ledger"
check "and nobody writes to it" sh -c "! echo x 2> /dev/null > '/mnt/homes/.snapshots/$snapshot/ledger'"

# A disk, as a device of this kernel.
# What the kernel says of each refusal is not the job's report.
must dmesg -n 1
must modprobe nbd nbds_max=2
types disk attach data --device /dev/nbd0 > attach.log 2>&1 &
attached=$!
for _ in $(seq 1200); do
  grep -q "is served at" attach.log && break
  kill -0 $attached 2> /dev/null || break
  sleep 0.1
done
check "the disk is attached" grep "is served at" attach.log
head -c 4194304 /dev/urandom > /tmp/image
must dd if=/tmp/image of=/dev/nbd0 bs=1M oflag=direct status=none
same_image() { dd if=/dev/nbd0 bs=1M count=4 iflag=direct status=none | cmp - /tmp/image; }
check "firn disk show says who has it" is "bool(a['attached'])" disk show data

# A hard cap.
must cp /tmp/image /mnt/projects/kept
must types budget set --hard-cap 0
for place in /mnt/projects /mnt/homes /dev/nbd0; do
  check "at the cap what is written to $place is refused" python3 until_written.py $place refused
  echo "  $(cat /tmp/check.out)"
done
check "a new file is refused" sh -c '! mkdir /mnt/projects/new'
EXPORT=/projects
cold /mnt/projects
check "what was written is read" cmp /tmp/image /mnt/projects/kept
check "from the disk, too" same_image
check "and may be removed" rm /mnt/projects/kept
check "firn status says so" sh -c './firn --profile profile.json status | grep -q "refuse new writes"'
must types budget raise 100
for place in /mnt/projects /mnt/homes /dev/nbd0; do
  check "writes to $place are taken again when it is raised" python3 until_written.py $place taken
  echo "  $(cat /tmp/check.out)"
done
check "the disk is what it was" same_image
must types disk detach data
wait $attached
check "the attach ends well when the disk is taken back" [ $? = 0 ]
check "the device is free" [ "$(blockdev --getsize64 /dev/nbd0)" = 0 ]

# A rekey, while the kernel writes and the edge is killed.
must sh -c 'mkdir /mnt/homes/tree && cp /tmp/image /mnt/homes/tree/1 && cp /tmp/image /mnt/homes/tree/2'
must sync -f /mnt/homes/tree/1
write_on() {
  round=0
  while [ ! -e /tmp/enough ]; do
    round=$((round + 1))
    echo $round > /mnt/homes/round && sync -f /mnt/homes/round || { echo "FAILED a write under a rekey"; exit 1; }
    echo $round > /tmp/round
  done
}
write_on &
writer=$!
must types volume rotate homes --phrase-file phrase
must types volume rekey homes --rate "64 KiB"
under_way() { is "a['edges'][0]['rekey']['under_way_to'] == 2" volume rekey homes --status; }
until_holds "a rekey is under way while the kernel writes" under_way
check "kill -9 of the edge in the middle of it" python3 ./control.py admin kill
must types volume rekey homes --rate "1 GiB"
finished="a['edges'][0]['rekey']['number'] == a['asked']['number'] and a['edges'][0]['rekey']['last_end'] == 'done'"
rekeyed() { is "$finished and a['edges'][0]['rekey']['oldest_epoch'] == 2" volume rekey homes --status; }
until_holds "it goes on and ends; nothing but snapshots is opened by older keys" rekeyed
check "firn says which snapshot still is" is "'$snapshot' in a['edges'][0]['rekey']['old_snapshots']" volume rekey homes --status
touch /tmp/enough
check "no write of the kernel failed meanwhile" wait $writer
EXPORT=/homes
cold /mnt/homes
check "what was written last is there" cmp /tmp/round /mnt/homes/round
for number in 1 2; do check "file $number is what it was" cmp /tmp/image /mnt/homes/tree/$number; done
check "and so is the snapshot" grep -qx before "/mnt/homes/.snapshots/$snapshot/ledger"
for volume in projects homes; do must umount /mnt/$volume; done
finish
