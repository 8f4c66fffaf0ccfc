# Runs a container's command as a child, so that its exit code tells the signal that killed it, and no message of the shell is in its
# output. The exit code goes into a file: processes that the command leaves behind may hold its output open for ever. The guest agent may
# have set the container's variables for this shell, too, PATH among them.
d=${0%/*}
trap : HUP INT QUIT TERM
exec 3>&2 2>/dev/null
(exec /bin/sh "$d/start" "$@" 2>&3 3>&-)
code=$?
echo $code >"$d/code.tmp"
/bin/mv "$d/code.tmp" "$d/code"
# Wakes the shell that waits for the exit code; a later one finds the file. A pipe that is opened for both directions does not block.
(
	exec 3>&- 4<>"$d/over"
	echo >&4
	/bin/sleep 5
) </dev/null >/dev/null &
exit $code
