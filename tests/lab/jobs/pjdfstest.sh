# pjdfstest: what POSIX asks of a file system, case by case, through the kernel's NFS client.
. ./lib.sh
attach /mnt/firn
mkdir /mnt/firn/p
chmod 777 /mnt/firn/p
mkdir -m 777 /tmp/other # another file system, for what must not work across two
run() { NO_COLOR=1 timeout 540 ./pjdfstest -p /mnt/firn/p -s /tmp/other "$@" >> /tmp/pjdfstest.log 2>&1; }
run -c pjdfstest.toml
status=$?
# The cases of a file system turned read-only, in a run of their own: some others keep a file open until the process
# ends, and then the kernel refuses. What is logged later counts.
sed 's/allow_remount = false/allow_remount = true/' pjdfstest.toml > /tmp/remount.toml
run -c /tmp/remount.toml erofs
python3 ./pjdfstest_judge.py "$SERVER" /tmp/pjdfstest.log ./pjdfstest-expected.toml || failures=1
# 0: all passed, 1: some failed, which is judged above; anything else broke off.
[ $status -le 1 ] || { echo "FAILED pjdfstest ended with status $status"; tail -20 /tmp/pjdfstest.log; failures=1; }
[ -z "$SHOW" ] || cat /tmp/pjdfstest.log
finish
