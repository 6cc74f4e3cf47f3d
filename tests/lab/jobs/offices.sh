# Three offices of one shared volume, each with an edge of its own, at several latencies to the cloud: a document in turns, git, a build, SQLite, edges that
# are killed, and one that is cut off. Given by the driver: OFFICES, each NAME=ADDRESS of its edge; LATENCIES in milliseconds, PHASES.
. ./lib.sh
for office in $OFFICES; do
  for export in export contracts; do
    mkdir -p /mnt/${office%%=*}-$export
    # With locks: SQLite's go to the edges (NLM), and from there to the other offices.
    must mount -t nfs -o "$MOUNT_OPTIONS,nosharecache,actimeo=1" "${office#*=}:/$export" /mnt/${office%%=*}-$export
  done
done
git config --global init.defaultBranch main
git config --global user.name guest
git config --global user.email guest@example.org
git config --global gc.auto 0
git config --global --add safe.directory '*'
timeout 2600 python3 ./offices.py || failures=1
finish
