# Runs a container's command as a child, so that a signal which kills it is known by its number, in the process whose number
# is written down, with none of the shell's own remarks among its output. Its exit code goes into a file of its own: what
# the command leaves behind may hold its output open for ever.
d=${0%/*}
. "$d/env"
@CD@trap : HUP INT QUIT TERM
exec 3>&2 2>/dev/null
(exec /bin/sh -c 'echo $$ >"$0"; exec "$@"' "$d/pid" "$@" 2>&3 3>&-)
code=$?
echo $code >"$d/code.tmp"
mv "$d/code.tmp" "$d/code"
# Whoever waits is woken; whoever comes later finds the file. Opened for both, a pipe keeps nobody waiting.
(
	exec 3>&- 4<>"$d/over"
	echo >&4
	sleep 5
) </dev/null >/dev/null &
exit $code
