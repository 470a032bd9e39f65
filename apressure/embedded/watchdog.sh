# Starts an embedded server, ends it when its owner has ended, and cleans up after both.
#
# Environment: APRESSURE_BINARY  the server program
#              APRESSURE_RUN     the temporary directory, with server.conf; the owner makes it after this process has
#                                started, so that no death leaves it behind
#              APRESSURE_SHUTDOWN_TIMEOUT   tenths of a second from SIGTERM to SIGKILL
# Input:       a line when the configuration is written; end of file when the owner stops or has ended
# Output:      the log
# Errors:      the lock of the data directory, or the log without one. The lock is only held: the server inherits it, so
#              the directory stays locked until both have ended.
# Status:      the server's

# Descriptors of one digit, because dash knows no others.
exec 3<&0 4>&2 2>&1 </dev/null
trap '' HUP INT QUIT
PATH=$PATH:/usr/bin:/bin # for rm and sleep
status=0
if IFS= read -r _ <&3; then
  "$APRESSURE_BINARY" "$APRESSURE_RUN/server.conf" 3<&- &
  server=$!
  echo "$server" >"$APRESSURE_RUN/pid"
  (
    exec 4>&- # our sleep may outlive this process, and must not hold the lock
    IFS= read -r _ <&3
    kill -TERM "$server"
    left=$APRESSURE_SHUTDOWN_TIMEOUT
    while kill -0 "$server" && [ "$left" -gt 0 ]; do sleep 0.1; left=$((left - 1)); done
    kill -KILL "$server"
  ) 2>/dev/null &
  reader=$!
  exec 3<&-
  trap 'kill -TERM "$server"' TERM
  wait "$server"
  status=$?
  # A trapped signal ends `wait` before the server has ended.
  while kill -0 "$server" 2>/dev/null; do wait "$server"; status=$?; done
  kill -KILL "$reader" 2>/dev/null
  wait "$reader" 2>/dev/null
fi
rm -rf -- "$APRESSURE_RUN"
exit "$status"
