# The everyday tools: cp -a, diff, tar, mv, ln, rm -rf, on a real tree, each checked after a new mount.
. ./lib.sh
attach /mnt/firn
cd /tmp/job

# A tree with what real trees have: symlinks (also dangling), hard links, odd modes and owners, empty and sparse files,
# long and non-UTF-8 names, times before the epoch and in the far future.
tree=/tmp/tree
mkdir $tree
cp -a /usr/include /usr/lib/python3.11 $tree/
mkdir $tree/odd
cd $tree/odd
ln -s ../include include; ln -s nowhere dangling
echo linked > one; ln one two; ln one three
: > empty; truncate -s 100M sparse; printf 'end' >> sparse
touch "$(printf 'n%.0s' $(seq 255))" "$(printf 'not-utf8-\377\376')" 'space and "quotes"' -- -dash
mkfifo fifo; mknod character c 1 3; mknod block b 7 0
install -m 4755 /bin/true setuid; mkdir -m 1777 sticky; mkdir -m 2775 setgid; chmod 0 empty
chown 1234:5678 one; chown -h 4321:8765 dangling
touch -d '1970-01-02 03:04:05.123456789' old; touch -d '2037-12-31' late
cd /tmp/job

check "cp -a copies a tree of $(find $tree | wc -l) entries" cp -a $tree /mnt/firn/
cold /mnt/firn
check "the copy has the same entries, contents, modes, owners, links and times" python3 /tmp/job/compare.py $tree /mnt/firn/tree
check "diff -r finds no difference" diff -r --no-dereference $tree/python3.11 /mnt/firn/tree/python3.11
check "a sparse file is sparse" sh -c '[ $(du -k /mnt/firn/tree/odd/sparse | cut -f1) -lt 10240 ]'
check "tar reads the whole tree" tar c --format=posix -f /tmp/copy.tar -C /mnt/firn tree
check "tar unpacks it on the mount" sh -c 'mkdir /mnt/firn/again && tar xpf /tmp/copy.tar -C /mnt/firn/again'
cold /mnt/firn
check "what was unpacked is the same" python3 /tmp/job/compare.py $tree /mnt/firn/again/tree
check "mv between directories keeps everything" sh -c 'mv /mnt/firn/again/tree /mnt/firn/moved && rmdir /mnt/firn/again'
check "what was moved is the same" python3 /tmp/job/compare.py $tree /mnt/firn/moved
check "an open file outlives its name" sh -c '
  exec 7<> /mnt/firn/doomed; echo still here >&7; rm /mnt/firn/doomed; cat < /proc/self/fd/7 | grep -q "still here"'
check "appends of two writers are whole lines" sh -c '
  for i in $(seq 50); do echo a-$i >> /mnt/firn/log; echo b-$i >> /mnt/firn/log; done; [ $(grep -cE "^[ab]-[0-9]+$" /mnt/firn/log) = 100 ]'
check "df shows a size" sh -c 'df -k /mnt/firn | awk "NR==2 && \$2>0 && \$4>0 {ok=1} END{exit !ok}"'
check "rm -rf removes the trees" rm -rf /mnt/firn/tree /mnt/firn/moved /mnt/firn/log
cold /mnt/firn
check "nothing is left" sh -c '[ -z "$(ls -A /mnt/firn)" ]'
finish
