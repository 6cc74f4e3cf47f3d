# A tenant's disk as a device of the kernel, as the tenant types it: firn disk attach --device. Two profiles stand for two machines.
# Given by the driver: HOST; firn and firn-blockd, the tenant's profile, and SERVER's disk "data".
. ./lib.sh
chmod 700 firn firn-blockd
mkdir -p here there
for machine in here there; do must cp profile.json $machine/profile.json; done

# on MACHINE COMMAND…: what somebody types there.
on() {
  machine=$1
  shift
  ./firn --profile "$machine/profile.json" "$@"
}

# attach MACHINE DEVICE [OPTION…]: attaches the disk and waits until the device has it.
attach_disk() {
  machine=$1 device=$2
  shift 2
  # No function: signals are for the program, and not for a shell around it.
  ./firn --profile "$machine/profile.json" disk attach data --device "/dev/$device" "$@" > "$machine/attach.log" 2>&1 &
  attached=$!
  for _ in $(seq 600); do
    grep -q "is served at" "$machine/attach.log" && return
    kill -0 $attached 2> /dev/null || break
    sleep 0.1
  done
  echo "FAILED set-up: the disk is attached to $device"
  cat "$machine/attach.log"
  exit 1
}

# refused WORDS COMMAND…: the command ends with 2 and says so.
refused() {
  words=$1
  shift
  "$@" > /tmp/refused.out 2>&1
  [ $? = 2 ] && grep -q "$words" /tmp/refused.out && return
  cat /tmp/refused.out
  return 1
}

# bytes DEVICE
bytes() { blockdev --getsize64 "/dev/$1"; }
# larger DEVICE BYTES: within a minute, as growth is looked for four times a minute.
larger() {
  for _ in $(seq 600); do
    [ "$(bytes "$1")" = "$2" ] && return
    sleep 0.1
  done
  bytes "$1"
  return 1
}

must mknod /tmp/nbd0 b 43 0
check "without the module it is refused" refused "modprobe nbd" on here disk attach data --device /tmp/nbd0
must modprobe nbd nbds_max=4
check "without the right to administer the machine it is refused" refused "only root" \
  setpriv --bounding-set -sys_admin ./firn --profile here/profile.json disk attach data --device /dev/nbd0
check "another device is refused" refused "modprobe nbd" on here disk attach data --device /dev/ubda

attach_disk here nbd0
check "the device is as large as the disk" [ "$(bytes nbd0)" = $((64 << 20)) ]
check "mkfs.ext4" mkfs.ext4 -q -F -N 4096 /dev/nbd0
mkdir -p /mnt/disk
check "it is mounted" mount /dev/nbd0 /mnt/disk
check "a tree is copied onto it" cp -a /usr/include/linux /mnt/disk/headers
check "a device in use is refused" refused "in use by process" on there disk attach data --device /dev/nbd0

must on here disk grow data 128MiB --wait
check "the device grows with the disk" larger nbd0 $((128 << 20))
check "and the file system with the device, mounted" resize2fs /dev/nbd0
check "it is unmounted" umount /mnt/disk
must on there disk detach data
wait $attached
check "the attach ended well" [ $? = 0 ]
check "the device is free" [ "$(bytes nbd0)" = 0 ]

must mkdir -p there/disks
must cp here/disks/*.key there/disks
attach_disk there nbd1
check "fsck finds nothing on the other machine" fsck.ext4 -fn /dev/nbd1
must mount /dev/nbd1 /mnt/disk
check "the tree is what it was" diff -r /usr/include/linux /mnt/disk/headers

# Given back under a mounted file system: what is there is written first.
must cp -a /usr/include/asm-generic /mnt/disk/late
kill -INT $attached
wait $attached
check "a mounted disk is given back" [ $? = 0 ]
umount /mnt/disk || umount -l /mnt/disk
attach_disk there nbd1
must mount /dev/nbd1 /mnt/disk
check "what was not synced by anybody was written" diff -r /usr/include/asm-generic /mnt/disk/late
must touch /mnt/disk/synced
must sync
kill -9 $attached
wait $attached 2> /dev/null
umount /mnt/disk || umount -l /mnt/disk
attach_disk there nbd1 --force
check "a device that a killed attach left is taken over, and mounted" mount /dev/nbd1 /mnt/disk
check "what was synced is there" test -e /mnt/disk/synced
check "and the tree" diff -r /usr/include/linux /mnt/disk/headers
must umount /mnt/disk
check "fsck finds nothing" fsck.ext4 -fn /dev/nbd1
kill -INT $attached
wait $attached
check "it is given back" [ $? = 0 ]
finish
