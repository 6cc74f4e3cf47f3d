# Two offices of one shared volume, each with an edge of its own, at several latencies to the cloud: a document in turns, git, a build, an edge that is
# killed, and one that is cut off. Given by the driver: ONE and TWO, the edges; LATENCIES in milliseconds, PHASES.
. ./lib.sh
for office in one two; do
  [ $office = one ] && HOST_OF=$ONE || HOST_OF=$TWO
  for export in export contracts; do
    mkdir -p /mnt/$office-$export
    must mount -t nfs -o "$MOUNT_OPTIONS,nosharecache,actimeo=1" "$HOST_OF:/$export" /mnt/$office-$export
  done
done
git config --global init.defaultBranch main
git config --global user.name guest
git config --global user.email guest@example.org
git config --global gc.auto 0
git config --global --add safe.directory '*'
timeout 1500 python3 ./offices.py || failures=1
finish
