# POSIX ACLs of an ordinary Linux client: getfacl and setfacl, who may then, defaults, copies; each checked after a new mount.
. ./lib.sh
attach /mnt/firn
cd /mnt/firn

# as UID COMMAND…: in nobody's groups.
as() { uid=$1; shift; setpriv --reuid "$uid" --regid "$uid" --clear-groups "$@"; }
# refused UID FILE: may not read it.
refused() { ! as "$1" cat "$2"; }

echo "for some" > letter
chmod 600 letter
check "without an ACL a stranger reads nothing" refused 1234 letter
check "setfacl names a user" setfacl -m u:1234:r,g:4321:rw letter
check "who is named reads" as 1234 cat letter
check "and does not write" sh -c '! setpriv --reuid 1234 --regid 1234 --clear-groups sh -c "echo x >> /mnt/firn/letter"'
check "a member of the group that is named writes" setpriv --reuid 1235 --regid 4321 --clear-groups sh -c 'echo more >> /mnt/firn/letter'
check "a stranger still reads nothing" refused 1235 letter
check "ls shows that there is an ACL" sh -c 'ls -l /mnt/firn/letter | grep -q "^-rw-rw----+"'
getfacl -n letter > /tmp/letter.acl
check "getfacl shows all of it" sh -c 'grep -qx user:1234:r-- /tmp/letter.acl && grep -qx group:4321:rw- /tmp/letter.acl && grep -qx mask::rw- /tmp/letter.acl'
check "chmod narrows the mask" sh -c 'chmod g= /mnt/firn/letter && getfacl -n /mnt/firn/letter | grep -qx mask::---'
check "and whom it named with it" refused 1234 letter
check "chmod widens it again" chmod g=rw letter

mkdir shared
check "setfacl gives a directory a default" setfacl -d -m u:1234:rwx,o::- shared
(umask 077; echo new > shared/new; mkdir shared/sub)
check "it passes to a file whatever the umask" as 1234 sh -c 'echo again >> /mnt/firn/shared/new'
check "and to a directory, with its default" sh -c 'getfacl -n /mnt/firn/shared/sub | grep -qx default:user:1234:rwx'
check "others have what the default gives them" refused 1236 shared/new

check "cp -a copies ACLs" cp -a letter shared /tmp/job/
check "to another file system and back" sh -c 'mkdir back && cp -a /tmp/job/letter /tmp/job/shared back/'
getfacl -nR letter shared > /tmp/before.acl
cold /mnt/firn
cd /mnt/firn
getfacl -nR letter shared > /tmp/after.acl
check "a new mount shows the same" cmp /tmp/before.acl /tmp/after.acl
(cd back && getfacl -nR letter shared > /tmp/back.acl)
check "and so do the copies" cmp /tmp/before.acl /tmp/back.acl
check "setfacl -b takes an ACL away" sh -c 'setfacl -b /mnt/firn/letter && ls -l /mnt/firn/letter | grep -q "^-rw------- "'
check "and its user with it" refused 1234 letter
check "setfacl -k takes a default away" sh -c 'setfacl -k /mnt/firn/shared && ! getfacl -n /mnt/firn/shared | grep -q default'
check "getfacl's output restores them" sh -c 'cd /mnt/firn && setfacl --restore=/tmp/before.acl'
getfacl -nR letter shared > /tmp/restored.acl
check "as they were" cmp /tmp/before.acl /tmp/restored.acl
cd /tmp/job
cold /mnt/firn
check "who is named reads after all that" as 1234 cat /mnt/firn/letter
finish
