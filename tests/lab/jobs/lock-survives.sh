# Locks across kill -9 of the server: a held lock stays held, a waiting one stays waiting, and then gets its turn.
. ./lib.sh
attach /mnt/a nosharecache
attach /mnt/b nosharecache
timeout 400 python3 ./lock_survives.py /mnt/a/lock /mnt/b/lock || failures=1
finish
