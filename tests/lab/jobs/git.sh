# Git: many small files created by rename and link, memory maps of packs, lock files, and a check of every hash.
. ./lib.sh
attach /mnt/firn
export GIT_AUTHOR_NAME=guest GIT_AUTHOR_EMAIL=guest@example.org GIT_COMMITTER_NAME=guest GIT_COMMITTER_EMAIL=guest@example.org
git config --global init.defaultBranch main
git config --global gc.auto 0

# The repository that is cloned: on the guest's own disk, three commits.
mkdir /tmp/origin
cd /tmp/origin
must git init -q .
cp -a /usr/include/linux headers
must git add .
must git commit -q -m "headers"
cp -a /usr/lib/python3.11/asyncio /usr/lib/python3.11/json .
must git add .
must git commit -q -m "python"
must git rm -q -r headers/netfilter
must git commit -q -m "fewer headers"

cd /mnt/firn
check "git clone onto the mount" git clone -q --no-local /tmp/origin clone
cold /mnt/firn
cd /mnt/firn/clone
check "git fsck of the clone finds nothing" git fsck --full --strict
check "the working tree is clean" sh -c '[ -z "$(git status --porcelain)" ]'
check "a commit on the mount" sh -c 'echo change >> headers/types.h && git commit -q -a -m "change"'
check "a clone from the mount to the mount" git clone -q --no-local /mnt/firn/clone /mnt/firn/second
check "a push back" sh -c 'cd /mnt/firn/second && git checkout -q -b topic && git commit -q --allow-empty -m topic && git push -q origin topic'
check "repack and prune" git gc -q --prune=now
check "checkout of an older commit and back" sh -c 'git checkout -q HEAD~2 && git checkout -q main'
cold /mnt/firn
cd /mnt/firn/clone
check "fsck after repack, read anew" git fsck --full --strict
check "history is what it was" sh -c '[ $(git rev-list --count main) = 4 ] && git rev-parse -q --verify topic'
cd /
finish
