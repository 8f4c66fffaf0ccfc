# Prints the exit code of a command that `exec` has run under this name, or ends it with all of its process group: as the end of a terminal
# does, then for good.
exec 2>/dev/null
file=${0%/*}/exec-${1%%.*}
[ -r "$file" ] || exit 0
read -r name pid code <"$file" || exit 0
[ "$name" = "$1" ] || exit 0
if [ "$pid" = exit ]; then
	echo "$code"
	exit 0
fi
group=$(ps -o pgid= -p "$pid" | tr -d ' ')
# The guest agent may have killed the command's shell, which led its process group, and none of the others in it.
[ -n "$group" ] || group=$pid
kill -s HUP -- "-$group"
tries=0
while kill -s 0 -- "-$group" && [ $tries -lt 10 ]; do
	sleep 0.1
	tries=$((tries + 1))
done
kill -s KILL -- "-$group"
exit 0
