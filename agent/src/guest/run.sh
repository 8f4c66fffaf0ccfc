# Runs a container's command as a child, so that a signal which kills it is known by its number, in the process whose number
# is written down, with none of the shell's own remarks among its output. Its exit code goes through a pipe of its own: what
# the command leaves behind may hold its output open for ever.
d=${0%/*}
. "$d/env"
@CD@trap : HUP INT QUIT TERM
exec 3>&2 2>/dev/null
(exec /bin/sh -c 'echo $$ >"$0"; exec "$@"' "$d/pid" "$@" 2>&3 3>&-)
code=$?
echo $code >"$d/over"
exit $code
