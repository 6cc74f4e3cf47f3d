# Listing a directory that changes: entries that stay are listed exactly once, others at most once.
#
# One mount changes, the other reads: without attribute caching, and with small replies (rsize bounds READDIR too),
# so that a listing takes many requests and every cookie matters.
. ./lib.sh
attach /mnt/a nosharecache
attach /mnt/b nosharecache,noac,lookupcache=none,rsize=4096
timeout 280 python3 ./readdir_churn.py /mnt/a /mnt/b || failures=1
finish
