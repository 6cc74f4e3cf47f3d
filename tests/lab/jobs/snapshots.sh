# A tree of FILES files (10000; make test takes 1000) is deleted, cleaned up behind and restored from a snapshot, byte for byte, with its names, modes,
# times, links and owners; then all but a copy of the bucket and the recovery phrase is lost, and it is there once more.
. ./lib.sh
attach /mnt/firn
must python3 ./snapshot_tree.py make /mnt/firn/tree "${FILES:-10000}"
must python3 ./snapshot_tree.py list /mnt/firn/tree before
check "a snapshot is made" python3 ./control.py admin snapshot create monday
cold /mnt/firn
cd /tmp/job
must python3 ./snapshot_tree.py list /mnt/firn/.snapshots/monday/tree shown
check "the kernel reads in the snapshot what was written" cmp before shown
check "the snapshot cannot be written to" sh -c '! touch /mnt/firn/.snapshots/monday/tree/new 2> /dev/null'
check "the tree is deleted" rm -r /mnt/firn/tree
must python3 ./control.py admin sync
check "what is deleted and kept by a snapshot only is cleaned around" python3 ./control.py admin clean
check "the tree is restored" python3 ./control.py admin restore monday tree
cold /mnt/firn
cd /tmp/job
must python3 ./snapshot_tree.py list /mnt/firn/tree after
check "the restored tree is what it was, byte for byte" cmp before after
# For diff two pipes are never the same; the lists have them.
check "diff -r finds no difference to the snapshot" diff -r --no-dereference --exclude "*43" --exclude "*93" /mnt/firn/tree /mnt/firn/.snapshots/monday/tree
check "nothing of the restore is left over" sh -c '[ "$(ls -A /mnt/firn)" = tree ]'
must python3 ./control.py admin sync
check "everything in the bucket is whole" python3 ./control.py admin verify

must cp -a /mnt/firn/tree copy
must umount /mnt/firn
check "a copy of the bucket and the phrase are enough to go on" python3 ./control.py recover
attach /mnt/firn
must python3 ./snapshot_tree.py list /mnt/firn/tree recovered
check "what is recovered is the last commit, byte for byte" cmp before recovered
check "diff -r finds no difference to a copy made before" diff -r --no-dereference --exclude "*43" --exclude "*93" copy /mnt/firn/tree
check "the snapshot is recovered as well" diff -r --no-dereference --exclude "*43" --exclude "*93" copy /mnt/firn/.snapshots/monday/tree
check "everything in the copied bucket is whole" python3 ./control.py admin verify
cd /
finish
