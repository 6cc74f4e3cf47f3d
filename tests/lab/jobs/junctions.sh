# One tree of two volumes: junctions as the kernel's client sees them, which makes a submount of each.
. ./lib.sh
attach /mnt/firn
cd /tmp/job
place=/mnt/firn/dept/projects
# The other volume by itself, with caches of its own, to see what is in it.
mkdir -p /mnt/other
must mount -t nfs -o "$MOUNT_OPTIONS,nosharecache,actimeo=0,lookupcache=none" "$HOST:/projects" /mnt/other
must mkdir -p $place /mnt/firn/archive

check "what is written where the place was just made is in the other volume" sh -c "
  echo first > $place/first && grep -q first /mnt/other/first"
cold /mnt/firn
check "cd goes through the junction, and back" sh -c "cd $place && [ -f first ] && cd .. && [ -d projects ] && [ \$(pwd -P) = /mnt/firn/dept ]"
check "the place has a device of its own" sh -c "[ \$(stat -c %d $place) != \$(stat -c %d /mnt/firn/dept) ]"
check "the kernel has mounted it" grep -q " $place nfs " /proc/mounts
check "df shows the place as a file system" sh -c "[ \$(df --output=target $place | tail -1) = $place ]"
dd if=/dev/urandom of=$place/noise bs=1M count=16 conv=fsync 2> /dev/null
check "df shows what the other volume has, which is more than the first" sh -c "
  [ \$(df --output=used $place | tail -1) -ge 16000 ] && [ \$(df --output=used /mnt/firn | tail -1) -lt 1000 ]"
check "find walks through without a complaint" sh -c "
  find /mnt/firn > /tmp/found 2> /tmp/said && [ ! -s /tmp/said ] && [ \$(grep -c '/first\$' /tmp/found) = 2 ]"
check "find -xdev stays in the first volume" sh -c "[ \$(find /mnt/firn -xdev | grep -c '/first\$') = 0 ]"
check "ls -lR lists both volumes" sh -c "ls -lR /mnt/firn > /tmp/listed 2> /tmp/said && [ ! -s /tmp/said ] && grep -q noise /tmp/listed"
check "mv across copies" sh -c "echo plan > /mnt/firn/plan && mv /mnt/firn/plan $place/plan && [ ! -e /mnt/firn/plan ] && grep -q plan /mnt/other/plan"
check "a tree moves across and back" sh -c "
  mkdir -p /mnt/firn/tree/below && echo leaf > /mnt/firn/tree/below/leaf && mv /mnt/firn/tree $place/tree && grep -q leaf /mnt/other/tree/below/leaf &&
  mv $place/tree /mnt/firn/tree && [ ! -e /mnt/other/tree ] && grep -q leaf /mnt/firn/tree/below/leaf"
check "a hard link across is refused (EXDEV)" sh -c "! ln $place/plan /mnt/firn/plan 2> /tmp/said && grep -q -i 'cross-device' /tmp/said"
check "rmdir of the place is refused (EBUSY)" sh -c "! rmdir $place 2> /tmp/said && grep -q busy /tmp/said"
check "rm -r --one-file-system stops at the place" sh -c "
  mkdir -p /mnt/firn/dept/own && ! rm -r --one-file-system /mnt/firn/dept 2> /tmp/said && grep -q projects /tmp/said && grep -q plan /mnt/other/plan"
check "what is shown read-only is read" grep -q plan /mnt/firn/archive/plan
check "what is shown read-only is not written (EROFS)" sh -c "! touch /mnt/firn/archive/new 2> /tmp/said && grep -q -i 'read-only' /tmp/said"
cold /mnt/firn
check "rmdir of a place that the kernel did not mount is refused by the server" sh -c "! rmdir $place 2> /tmp/said && grep -q -i denied /tmp/said"
check "mv of a place that the kernel did not mount is refused" sh -c "
  ! python3 -c 'import os; os.rename(\"$place\", \"/mnt/firn/moved\")' 2> /tmp/said && grep -q PermissionError /tmp/said"
check "mv of what leads to a place is refused" sh -c "! mv /mnt/firn/dept /mnt/firn/moved 2> /tmp/said && [ -e $place/plan ]"
must python3 ./control.py kill
check "the tree is the same after kill -9 of the edge" sh -c "grep -q plan $place/plan && echo again > $place/again && grep -q again /mnt/other/again"
check "rm -r of the content leaves the first volume alone" sh -c "rm -r $place/* && [ -z \"\$(ls -A /mnt/other)\" ] && [ -e /mnt/firn/tree/below/leaf ]"
finish
