# The kernel's SMB 3.1.1 client on a share of an edge (see run-smb-client-tests): what people do with a share, and programs that are hard on one.
. ./lib.sh
for module in cifs cmac nls_utf8; do must modprobe $module; done

# share DIRECTORY [OPTION,…]: mounts the share there.
share() {
  mkdir -p "$1"
  mount -i -t cifs "//$HOST/files" "$1" -o "ip=$HOST,port=$PORT,username=alice,password=secret,vers=3.1.1,seal,mfsymlinks${2:+,$2}"
}
# read_anew DIRECTORY: what is read next comes from the server.
read_anew() {
  cd /tmp/job
  must umount "$1"
  must share "$1"
  echo 3 > /proc/sys/vm/drop_caches
}
must share /mnt/files
seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
if [ "$EXCLUSIVE" = true ]; then
  check "fsx with memory maps on a share whose clients cache, 20,000 operations, seed 1" ./fsx -N 20000 -S 1 /mnt/files/fsx-1
  read_anew /mnt/files
  check "fsx with memory maps on a share whose clients cache, 5,000 operations, seed $seed" ./fsx -N 5000 -S "$seed" /mnt/files/fsx-2
  finish
fi
check "fsx over SMB, 20,000 operations, seed 1" ./fsx -f fsx-without-maps.toml -N 20000 -S 1 /mnt/files/fsx-1
read_anew /mnt/files
check "fsx over SMB, 5,000 operations, seed $seed" ./fsx -f fsx-without-maps.toml -N 5000 -S "$seed" /mnt/files/fsx-2

# Owners and modes are the server's.
tree=/usr/lib/python3.11
check "cp -a of a tree over SMB" cp -a --no-preserve=ownership,mode $tree /mnt/files/tree
read_anew /mnt/files
check "and every file is as it was" diff -r $tree /mnt/files/tree
find $tree -type f -printf '%P\n' | sort > /tmp/names
written_at() { (cd "$1" && xargs -d '\n' stat --format "%n %Y" < /tmp/names); }
written_at $tree > /tmp/times.here
written_at /mnt/files/tree > /tmp/times.there
check "with its time" cmp /tmp/times.here /tmp/times.there
check "a tree is moved" mv /mnt/files/tree /mnt/files/moved
check "and removed" sh -c 'rm -r /mnt/files/moved && [ ! -e /mnt/files/moved ]'

export GIT_AUTHOR_NAME=guest GIT_AUTHOR_EMAIL=guest@example.org GIT_COMMITTER_NAME=guest GIT_COMMITTER_EMAIL=guest@example.org
git config --global init.defaultBranch main
git config --global gc.auto 0
# The share shows its files as those of whoever mounted it.
git config --global --add safe.directory '*'
mkdir /tmp/origin && cd /tmp/origin
must git init -q .
cp -a /usr/lib/python3.11/asyncio /usr/lib/python3.11/json .
must git add .
must git commit -q -m "python"
check "git clone onto a share" git -c core.fileMode=false clone -q --no-local /tmp/origin /mnt/files/clone
read_anew /mnt/files
cd /mnt/files/clone
check "git fsck of the clone finds nothing" git fsck --full --strict
check "the working tree is clean" sh -c 'git config core.fileMode false && [ -z "$(git status --porcelain)" ]'
check "a commit on the share" sh -c 'echo change >> json/tool.py && git commit -q -a -m "change"'
check "repack and prune" git gc -q --prune=now
read_anew /mnt/files
cd /mnt/files/clone
check "fsck after repack, read anew" git fsck --full --strict
cd /tmp/job
must umount /mnt/files

# Connections of their own: the client's kernel does not settle the locks by itself.
must share /mnt/a nosharesock
must share /mnt/b nosharesock
check "two connections to the share" sh -c '[ "$(grep -c "SessionId" /proc/fs/cifs/DebugData)" -ge 2 ]'
check "byte-range locks of two mounts exclude each other, and end with their holder" timeout 60 python3 ./two_mounts_lock.py /mnt/a/locked /mnt/b/locked
# Not by byte ranges: this client cannot turn a shared lock into an exclusive one, which SMB has no word for, and SQLite would wait for itself.
export SQLITE_VFS=unix-dotfile
check "no update of four SQLite writers on two mounts is lost" timeout 240 python3 ./sqlite_writers.py /mnt/a/test.db /mnt/b/test.db
check "no journal is left" sh -c '[ ! -e /mnt/a/test.db-journal ]'
must umount /mnt/a /mnt/b
must share /mnt/a
check "the database is whole" sh -c '[ "$(sqlite3 /mnt/a/test.db "pragma integrity_check")" = ok ]'
finish
