# A virtual disk under the kernel's own NBD client: ext4 and SQLite on it, through kill -9 of the whole cluster and its client.
# Given by the driver: HOST, PORT. KILLS: how often, default 2.
. ./lib.sh
must modprobe nbd nbds_max=16
device=0
join() {
  device=$((device + 1))
  must python3 nbd_attach.py "$HOST" "$PORT" "/dev/nbd$device"
}
join
mkdir -p /mnt/disk
# Without discard: a discard of the whole disk goes to the nodes block by block still, which takes minutes on a busy machine.
check "mkfs.ext4" mkfs.ext4 -q -F -E nodiscard -N 4096 "/dev/nbd$device"
check "the disk is mounted" mount "/dev/nbd$device" /mnt/disk
check "a tree is copied onto it" cp -a /usr/include/linux /mnt/disk/headers
check "it is unmounted" umount /mnt/disk
must python3 nbd_attach.py -d "/dev/nbd$device"
join
check "fsck finds nothing, by a new connection" fsck.ext4 -fn "/dev/nbd$device"
must mount "/dev/nbd$device" /mnt/disk
check "the tree is what it was" diff -r /usr/include/linux /mnt/disk/headers
for round in $(seq "${KILLS:-2}"); do
  python3 disk_writer.py /mnt/disk /tmp/acknowledged > /tmp/writer.log 2>&1 &
  sleep "3.$round"
  must python3 control.py kill
  wait
  umount /mnt/disk || umount -l /mnt/disk
  join
  must mount "/dev/nbd$device" /mnt/disk
  check "every acknowledged commit is there after kill $round" python3 disk_writer.py /mnt/disk /tmp/acknowledged check
  cat /tmp/check.out
  must umount /mnt/disk
  check "fsck finds nothing after kill $round" fsck.ext4 -fn "/dev/nbd$device"
  must mount "/dev/nbd$device" /mnt/disk
done
check "the tree is still what it was" diff -r /usr/include/linux /mnt/disk/headers
umount /mnt/disk
python3 nbd_attach.py -d "/dev/nbd$device"
finish
