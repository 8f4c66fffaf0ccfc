# What makes a guest a container's place: functions, called by what `script.rs` writes after them. Everything is said on
# standard output, a line each: `notice WORDS`, `failed REASON WORDS`, or at last `ready HOW DIRECTORY`.
#
# The shell of macOS is bash 3.2 as a POSIX shell. It ends when it cannot open a file for one of its special commands, `:` among
# them, and inside of `$(` it takes the `)` of a `case` for the end unless there is a `(`, too.

fail() {
	printf 'failed %s %s\n' "$1" "$2"
	[ -z "$dir" ] || rm -rf "$dir"
	exit 1
}
notice() { printf 'notice %s\n' "$1"; }
root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi </dev/null 2>/dev/null; }
try() { "$@" 2>/dev/null || root "$@"; }
umask 077
dir=
dir=$(mktemp -d /var/tmp/tart-kubelet.XXXXXX) || fail CreateContainerError 'the guest cannot write to /var/tmp'
as=self owner=

pipe() { mkfifo "$dir/$1" || fail CreateContainerError 'the guest has no room in /var/tmp'; }
put() { printf '%s' "$2" >"$dir/$1" || fail CreateContainerError 'the guest has no room in /var/tmp'; }
own() { [ -z "$owner" ] || root chown -R "$owner" "$1"; }

host_name() {
	root scutil --set HostName "$1" >/dev/null || root hostname "$1" || notice "the guest keeps its own host name"
}

hosts() {
	printf '%s' "$1" | if [ -w /etc/hosts ]; then cat >>/etc/hosts; else sudo -n tee -a /etc/hosts >/dev/null; fi ||
		fail CreateContainerError 'cannot add to /etc/hosts in the guest'
}

be() {
	[ "$3" = false ] || [ "${1:-$(id -u)}" != 0 ] ||
		fail CreateContainerConfigError 'container has runAsNonRoot and image will run as root'
	[ "${1:-$(id -u)}:${2:-$(id -g)}" = "$(id -u):$(id -g)" ] && return
	as=other owner=${1:-$(id -u)}
	sudo -n ${1:+-u "#$1"} ${2:+-g "#$2"} -- true </dev/null >/dev/null 2>&1 ||
		fail CreateContainerConfigError "the guest cannot run a command as user ${1:-$(id -u)}${2:+, group $2}: it has none with that number, or its user may not use sudo without a password"
}

mount_at() {
	tries=0
	until [ -e "$1" ]; do
		tries=$((tries + 1))
		[ $tries -le 30 ] || fail CreateContainerError "the guest does not see the share of volume mount $2 at $1"
		sleep 1 </dev/null
	done
	path=$2
	if [ -L "$path" ] && [ -d "$path" ]; then
		now=$(cd "$path" && pwd -P)
		case $now in '/Volumes/My Shared Files'*) try rm -f "$path" ;; *) path=$now ;; esac
	elif [ -L "$path" ]; then
		try rm -f "$path"
	fi
	parent=${path%/*}
	[ -d "${parent:-/}" ] || (umask 022; try mkdir -p "$parent") || cannot_mount "$2"
	# What the image has there is hidden, as a mount would hide it.
	[ ! -e "$path" ] || rmdir "$path" 2>/dev/null || try mv "$path" "$path.hidden-by-volume" || cannot_mount "$2"
	try ln -s "$1" "$path" || cannot_mount "$2"
}

cannot_mount() {
	fail CreateContainerError "volume mount $1 cannot be had in the guest: macOS seals its root; choose a path below /Users, /private, /opt, /usr/local, /Library or /Volumes, or an image that has the directory"
}

last_words() {
	{ true >"$1" && chmod 666 "$1"; } 2>/dev/null || root sh -c 'true >"$0" && chmod 666 "$0"' "$1" ||
		[ "$1" = /dev/termination-log ] || notice "no termination message can be left at $1 in the guest"
}

work_in() {
	wd=$1
	[ -z "$1" ] || [ -d "$1" ] || { (umask 022; try mkdir -p "$1") && own "$1"; } ||
		fail StartError "the working directory $1 cannot be made in the guest"
}

find_program() {
	found=$(
		. "$dir/env"
		p=$1
		[ -z "$wd" ] || cd "$wd"
		case $p in
		(*/*) [ -x "$p" ] && [ ! -d "$p" ] && echo yes ;;
		(*) command -v "$p" >/dev/null && echo yes ;;
		esac
	)
	[ "$found" = yes ] || fail StartError "cannot start \`$1\` in the guest: it has no such program; check \`command\` and the image"
}

# From here on only the container's user can look into the directory.
ready() {
	own "$dir" || fail CreateContainerConfigError "the guest's user cannot give files to user $owner"
	printf 'ready %s %s\n' "$as" "$dir"
}
