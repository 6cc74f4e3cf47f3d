# An office on what Terraform made: files are written, half of them deleted, the cleaner's function gives their space back, and the
# other half is there, byte for byte.
. ./lib.sh
attach /mnt/firn
must mkdir /mnt/firn/kept /mnt/firn/doomed /tmp/copy
for n in $(seq 12); do
  head -c 1500000 /dev/urandom > /tmp/copy/$n
  must cp /tmp/copy/$n /mnt/firn/kept/$n
  must cp /tmp/copy/$n /mnt/firn/doomed/$n
  must sh -c "head -c 1500000 /dev/urandom > /mnt/firn/doomed/$n-more"
done
check "what was written is in the cloud" python3 ./control.py admin sync
check "half of it is deleted" rm -r /mnt/firn/doomed
must python3 ./control.py admin sync
check "the function cleans by a message in the queue" python3 ./control.py admin let-the-function-clean
cold /mnt/firn
check "what was kept is there, byte for byte" diff -r /tmp/copy /mnt/firn/kept
check "everything in the bucket is whole" python3 ./control.py admin verify
must umount /mnt/firn
finish
