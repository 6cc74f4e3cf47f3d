# SQLite from two mounts: four writers count up one number under SQLite's own byte-range locks.
#
# `nosharecache` gives each mount its own inodes, so the client's kernel does not settle the locks by itself: each
# conflict is decided by the server, and each lock taken drops what the mount had cached.
. ./lib.sh
attach /mnt/a nosharecache
attach /mnt/b nosharecache
check "no update of four writers on two mounts is lost" timeout 240 python3 ./sqlite_writers.py /mnt/a/test.db /mnt/b/test.db
check "no journal is left" sh -c '[ ! -e /mnt/a/test.db-journal ]'
cold /mnt/a
check "the database is whole" sh -c '[ "$(sqlite3 /mnt/a/test.db "pragma integrity_check")" = ok ]'
finish
