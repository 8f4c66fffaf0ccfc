# Runs a command in the container's environment, as a child, so that the exit code tells the signal that killed it. The first argument is the
# command's name. What is before its dot names a file for the process ID by which the command can be killed, and then for its exit code: the
# guest agent may lose it. Later commands use the file again, and it begins with the name of the one that it is about. The command gets a
# process group of its own, unless it has a terminal: then it has a session.
d=${0%/*}
if [ "$1" != child ]; then
	if [ ! -t 0 ] && [ -x /usr/bin/perl ]; then
		exec /usr/bin/perl -e 'setpgrp; exec { $ARGV[0] } @ARGV' /bin/sh "$0" child "$@"
	fi
else
	shift
fi
file=$d/exec-${1%%.*} name=$1
shift
echo "$name $$" >"$file"
trap : HUP INT QUIT TERM
exec 3>&2 2>/dev/null
(exec /bin/sh "$d/enter" "$@" 2>&3 3>&-)
code=$?
read -r owner _ <"$file"
[ "$owner" != "$name" ] || echo "$name exit $code" >"$file"
exit $code
