# fsx: random reads, writes, truncations, memory maps on one file, each checked against a copy in memory.
# 20,000 operations with one seed for every run, then some with a new seed, which is printed.
. ./lib.sh
attach /mnt/firn
check "fsx, 20,000 operations, seed 1" ./fsx -N 20000 -S 1 /mnt/firn/fsx-1
cold /mnt/firn
seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
check "fsx, 5,000 operations, seed $seed" ./fsx -N 5000 -S "$seed" /mnt/firn/fsx-2
finish
