# Sourced by every job. Given by the driver: HOST, EXPORT, MOUNT_OPTIONS (a mount with locks); see run-kernel-tests.
#
# A job reports by lines `ok SENTENCE` and `FAILED SENTENCE`; the driver counts them, and a job that ends with another
# status than 0 without a FAILED line counts as one failure.
failures=0

# What a client needs for locks: portmap, where the server finds our lock manager, and statd, which hears of restarts. Under systemd
# units start them.
if [ ! -d /run/systemd/system ]; then
  mkdir -p /run/rpcbind
  rpcbind -w && rpc.statd --no-notify
fi

# check SENTENCE COMMAND…: the command's output is shown only if it fails.
check() {
  sentence=$1
  shift
  if "$@" > /tmp/check.out 2>&1; then
    echo "ok $sentence"
  else
    echo "FAILED $sentence (status $?: $*)"
    head -c 1500 /tmp/check.out
    echo
    failures=$((failures + 1))
  fi
}

# must COMMAND…: set-up without which the job makes no sense.
must() {
  "$@" > /tmp/must.out 2>&1 && return
  echo "FAILED set-up: $* (status $?)"
  cat /tmp/must.out
  exit 1
}

# attach DIRECTORY [OPTION,…]: mounts the export there.
attach() {
  mkdir -p "$1"
  must mount -t nfs -o "$MOUNT_OPTIONS${2:+,$2}" "$HOST:$EXPORT" "$1"
}

# cold DIRECTORY: what is read next comes from the server. A new mount has no cached page or attribute.
cold() {
  cd /tmp/job
  must umount "$1"
  attach "$1"
}

finish() { [ $failures = 0 ]; exit; }
