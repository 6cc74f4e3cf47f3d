# The kernel's SMB client as users of a domain: a share mounted by Kerberos, with tickets that came along (see run-domain-tests).
. ./lib.sh
must tar -C / --no-same-owner -xf domain-client.tar
must ip route add 10.77.0.0/24 via "$HOST"
for module in cifs cmac; do must modprobe $module; done
mkdir -p /mnt/files /mnt/plans
echo "10.77.0.2 office.firn.test office" >> /etc/hosts

# share USER NAME: whoever mounts has the user's tickets where the kernel's question looks for them.
share() {
  cp "/tmp/tickets-of-$1" /tmp/krb5cc_0 && chmod 600 /tmp/krb5cc_0
  mount -i -t cifs "//office.firn.test/$2" "/mnt/$2" -o ip=10.77.0.2,sec=krb5,seal,vers=3.1.1,cruid=0,username="$1",domain=FIRN
}
check "a kernel mounts a share as a user of the domain, by Kerberos" share hanna files
check "and writes" sh -c 'echo "by a kernel" > /mnt/files/from-a-kernel && sync -f /mnt/files'
check "reads" grep -q kernel /mnt/files/from-a-kernel
check "renames and lists" sh -c 'mkdir /mnt/files/d && mv /mnt/files/from-a-kernel /mnt/files/d/x && ls /mnt/files/d | grep -qx x && mv /mnt/files/d/x /mnt/files/from-a-kernel'
check "a share for a group of the domain opens to its member" share hanna plans
check "unmounts" umount /mnt/plans /mnt/files
refused() { ! share otto plans && ! grep -q /mnt/plans /proc/mounts; }
check "and not to others" refused
check "who gets the other share all the same" share otto files
not_writable() { ! sh -c 'echo no >> /mnt/files/from-a-kernel'; }
check "and may not write what is another's" not_writable
check "unmounts again" umount /mnt/files
rm -f /tmp/krb5cc_0 /tmp/tickets-of-*
nobody() { ! mount -i -t cifs //office.firn.test/files /mnt/files -o ip=10.77.0.2,sec=krb5,seal,vers=3.1.1,cruid=0,username=hanna,domain=FIRN; }
check "without a ticket nothing is mounted" nobody
finish
