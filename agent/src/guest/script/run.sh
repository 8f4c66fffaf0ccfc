# Runs a container's command as a child, so that a signal which kills it is known by its number, with none of the shell's own
# remarks among its output. Its exit code goes into a file of its own: what the command leaves behind may hold its output open
# for ever. The container's variables are not for this shell, but its guest agent may have set them, PATH among them.
d=${0%/*}
trap : HUP INT QUIT TERM
exec 3>&2 2>/dev/null
(exec /bin/sh "$d/start" "$@" 2>&3 3>&-)
code=$?
echo $code >"$d/code.tmp"
/bin/mv "$d/code.tmp" "$d/code"
# Whoever waits is woken; whoever comes later finds the file. Opened for both, a pipe keeps nobody waiting.
(
	exec 3>&- 4<>"$d/over"
	echo >&4
	/bin/sleep 5
) </dev/null >/dev/null &
exit $code
