# The rows of the comparison with a peer, through the kernel client. Needs files.tar and bench.py beside it.
#
# Both servers are mounted alike, at the same durability: what fsync, O_DSYNC or a metadata call acknowledged is on the
# server's disk. `cold` is a new mount: the client's cache is empty, the server's is as warm as the writes left it.
. ./lib.sh
attach /mnt/firn
mkdir /mnt/firn/bench
export COLD="umount /mnt/firn && mount -t nfs -o $MOUNT_OPTIONS $HOST:$EXPORT /mnt/firn"
cd /tmp/job
python3 ./bench.py /mnt/firn/bench ./files.tar
exit
