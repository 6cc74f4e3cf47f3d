# kill -9 of the server, KILLS times (100), under writers that never stop; after each, everything acknowledged is there.
. ./lib.sh
attach /mnt/a nosharecache
attach /mnt/b nosharecache,actimeo=0,lookupcache=none
timeout 1400 python3 ./kill_loop.py /mnt/a /mnt/b || failures=1
finish
