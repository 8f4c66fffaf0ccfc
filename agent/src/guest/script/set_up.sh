# Prepares a guest for a container: functions, called by the lines that the shim adds. The script reports on standard output, one line
# each: `notice WORDS`, `failed REASON WORDS`, `user NUMBER`, or at last `ready HOW DIRECTORY`.
#
# The shell of macOS is bash 3.2 as a POSIX shell. It ends when it cannot open a file for one of its special commands, e.g. `:`. Inside of
# `$(` it takes the `)` of a `case` for the end unless there is a `(`, too.

fail() {
	printf 'failed %s %s\n' "$1" "$2"
	[ -z "$dir" ] || try rm -rf "$dir"
	exit 1
}
notice() { printf 'notice %s\n' "$1"; }
root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi </dev/null 2>/dev/null; }
try() { "$@" 2>/dev/null || root "$@"; }
umask 077
dir=
dir=$(mktemp -d /var/tmp/tart-kubelet.XXXXXX) || fail CreateContainerError 'the guest cannot write to /var/tmp'
as=self owner= first= uid= gid=

pipe() { mkfifo "$dir/$1" || fail CreateContainerError 'the guest has no disk space in /var/tmp'; }
put() { printf '%s' "$2" >"$dir/$1" || fail CreateContainerError 'the guest has no disk space in /var/tmp'; }
own() { [ -z "$owner" ] || root chown "$owner" "$@"; }

host_name() {
	root scutil --set HostName "$1" >/dev/null || root hostname "$1" || notice "the guest keeps its own host name"
}

# The lines of a container that is restarted are there already.
add_hosts() {
	printf '%s' "$1" | while IFS= read -r line; do
		grep -qxF -e "$line" /etc/hosts 2>/dev/null || printf '%s\n' "$line"
	done >"$dir/hosts"
	[ -s "$dir/hosts" ] || return 0
	{
		[ -z "$(tail -c 1 /etc/hosts 2>/dev/null)" ] || echo
		cat "$dir/hosts"
	} | if [ -w /etc/hosts ]; then cat >>/etc/hosts; else sudo -n tee -a /etc/hosts >/dev/null 2>&1; fi
}

own_names() { add_hosts "$1" || notice "the guest's /etc/hosts does not have its own name"; }
hosts() { add_hosts "$1" || fail CreateContainerError 'cannot add to /etc/hosts in the guest'; }

# The DNS servers and search domains. The guest's own come first, unless they are replaced.
dns() {
	servers=$1 domains=$2
	if [ "$3" = add ]; then
		[ -z "$1" ] || servers=$(known nameserver $1)
		[ -z "$2" ] || domains=$(known search $2)
	fi
	services=$(networksetup -listallnetworkservices 2>/dev/null </dev/null | sed '1d;/^\*/d')
	[ -n "$services" ] || cannot_resolve 'it has no networksetup, or no network service'
	while IFS= read -r service; do
		[ -z "$servers" ] || root networksetup -setdnsservers "$service" $servers >/dev/null || cannot_resolve "networksetup refuses it for $service, or the guest's user may not use sudo without a password"
		[ -z "$domains" ] || root networksetup -setsearchdomains "$service" $domains >/dev/null || cannot_resolve "networksetup refuses it for $service, or the guest's user may not use sudo without a password"
	done <<-END
		$services
	END
	# macOS writes the file a moment later.
	tries=0
	until [ "$(known nameserver)" = "${servers:-$(known nameserver)}" ] && [ "$(known search)" = "${domains:-$(known search)}" ]; do
		tries=$((tries + 1))
		[ $tries -le 50 ] || { notice "the guest's /etc/resolv.conf does not show the Pod's dnsConfig"; break; }
		sleep 0.1 </dev/null
	done
}

# The values of a keyword in /etc/resolv.conf, then the other arguments, each once.
known() {
	word=$1
	shift
	all=
	for one in $(sed -n "s/^$word[[:space:]]//p" /etc/resolv.conf 2>/dev/null) "$@"; do
		case " $all " in *" $one "*) ;; *) all="$all $one" ;; esac
	done
	echo $all
}

cannot_resolve() { fail CreateContainerError "the guest cannot be given the Pod's dnsConfig: $1"; }

# The container's user. sudo knows the guest's own users and their groups only. Other numbers and further groups need chroot, here with
# the root unchanged.
run_as() {
	[ "$3" = false ] || [ "${1:-$(id -u)}" != 0 ] ||
		fail CreateContainerConfigError 'container has runAsNonRoot and image will run as root'
	choosy=
	[ -z "$4" ] && [ "$5" = false ] || choosy=groups
	[ -z "$choosy" ] && [ "${1:-$(id -u)}:${2:-$(id -g)}" = "$(id -u):$(id -g)" ] && return
	owner=${1:-$(id -u)} uid=$1 gid=$2
	first='unset SUDO_COMMAND SUDO_USER SUDO_UID SUDO_GID
'
	if [ -z "$choosy" ] && sudo -n ${1:+-u "#$1"} ${2:+-g "#$2"} -- true </dev/null >/dev/null 2>&1; then
		as=sudo
		return
	fi
	group=${2:-$(id -g "$owner" 2>/dev/null || id -g)}
	groups=$group number=1
	for one in $4 $([ "$5" = true ] || id -G "$owner" 2>/dev/null); do
		# A process of macOS can have 16 groups.
		[ $number -lt 16 ] || break
		case ",$groups," in
		*",$one,"*) ;;
		*) groups=$groups,$one number=$((number + 1)) ;;
		esac
	done
	root chroot -u "$owner" -g "$group" -G "$groups" / /usr/bin/true >/dev/null ||
		fail CreateContainerConfigError "the guest cannot run a command as user $owner${2:+, group $2}${4:+, in groups $4}: it has no such user, or its own may not use sudo without a password"
	as=chroot:$owner:$group:$groups
	[ "$(id -u)" = 0 ] || as=sudo-$as
	# chroot sets neither the name nor the home of a user. A user that the guest does not know has none.
	name=$(id -un "$owner" 2>/dev/null) home=
	case $name in
	'' | *[!A-Za-z0-9_.-]*) name=$owner ;;
	*) home=$(eval "echo ~$name") ;;
	esac
	case $home in /*) ;; *) home=/ ;; esac
	first="${first}export HOME='$home' USER='$name' LOGNAME='$name'
"
}

# Runs a command as the container's user.
as_user() {
	case $as in
	self) "$@" ;;
	sudo) sudo -n -H ${uid:+-u "#$uid"} ${gid:+-g "#$gid"} -- "$@" ;;
	*) root chroot -u "$owner" -g "$group" -G "$groups" / "$@" ;;
	esac </dev/null >/dev/null 2>&1
}

# Shares appear a moment after the guest. The message does not show the subPath, which may be secret.
await() {
	tries=0
	until try test -e "$1"; do
		tries=$((tries + 1))
		[ $tries -le 30 ] || fail CreateContainerError "the guest does not see the share of volume mount $2, or what is to be in it"
		sleep 1 </dev/null
	done
}

mount_at() {
	await "$1" "$2"
	free_path "$2"
	try ln -s "$1" "$path" || cannot_mount "$2"
}

# Mounts a subPath of the host's files, or an empty directory if it is missing.
mount_or_empty() {
	await "$1" "$3"
	if try test -e "$2"; then
		mount_at "$2" "$3"
	else
		free_path "$3"
		(umask 022; try mkdir "$path") || cannot_mount "$3"
	fi
}

# Makes a subPath that no container before has made.
make_sub_path() {
	await "$1" "$4"
	try test -e "$3" || (umask "$2"; try mkdir -p "$3") || cannot_make "$4"
}

# Makes a path free, with all directories above it. Sets $path, with links resolved.
free_path() {
	path=$1
	# Follows the image's own links, e.g. /tmp. Removes the link of a container before, and one that leads nowhere.
	while [ -L "$path" ]; do
		to=$(readlink "$path")
		[ -e "$path" ] || to=
		case $to in
		'' | '/Volumes/My Shared Files'* | /private/var/tart-kubelet/*)
			try rm -f "$path" || cannot_mount "$1"
			break
			;;
		/*) path=$to ;;
		*) path=${path%/*}/$to ;;
		esac
	done
	parent=${path%/*}
	[ -d "${parent:-/}" ] || (umask 022; try mkdir -p "$parent") || cannot_mount "$1"
	# Hides what the image has there, as a mount would. Once that is hidden, what is there is of a container before.
	[ ! -e "$path.hidden-by-volume" ] || try rm -rf "$path" || cannot_mount "$1"
	[ ! -e "$path" ] || rmdir "$path" 2>/dev/null || try mv "$path" "$path.hidden-by-volume" || cannot_mount "$1"
}

# A file system in memory for all containers of the guest, and the subPath in it.
in_memory() {
	(umask 022; root mkdir -p "$1") && memory "$1" "$2" || no_memory "$1"
	try test -e "$3" || (umask 0; try mkdir -p "$3") || cannot_make "$4"
}

# A file system in memory at the path of its only mount, so that programs that ask for the file system of the path see this one. It hides
# what the image has there.
in_memory_at() {
	try test -d "$3" || {
		free_path "$3"
		(umask 022; try mkdir "$path") || cannot_mount "$3"
	}
	path=$(try sh -c 'cd "$0" && pwd -P' "$3") && memory "$path" "$2" || no_memory "$1"
}

# Mounts a file system in memory of at most so many bytes at a directory, unless there is one.
memory() {
	case $(PATH=$PATH:/sbin; mount) in *" on $1 "*) return ;; esac
	size=$2
	[ "$size" != 0 ] || size=
	root /sbin/mount_tmpfs ${size:+-s "$size"} "$1" && root chmod 777 "$1"
}

no_memory() {
	fail CreateContainerError "volume ${1##*/} cannot be had in the guest's memory: it has no mount_tmpfs, or its user may not use sudo without a password"
}

cannot_make() { fail CreateContainerError "the subPath of volume mount $1 cannot be made in the guest"; }

cannot_mount() {
	root true || fail CreateContainerError "volume mount $1 cannot be had in the guest: its user may not write there, nor use sudo without a password; choose another path or image"
	fail CreateContainerError "volume mount $1 cannot be had in the guest: macOS seals its root; choose a path below /Users, /private, /opt, /usr/local, /Library or /Volumes, or an image that has the directory"
}

termination_message() {
	parent=${1%/*}
	[ -d "${parent:-/}" ] || (umask 022; try mkdir -p "$parent")
	emptied "$1" || linked "$1" || notice "no termination message can be left at $1 in the guest"
}

emptied() { { true >"$1" && chmod 666 "$1"; } 2>/dev/null || root sh -c 'true >"$0" && chmod 666 "$0"' "$1"; }

# macOS takes links in /dev, but no files. The default terminationMessagePath is in /dev.
linked() {
	case $1 in /dev/*/*) return 1 ;; /dev/*) ;; *) return 1 ;; esac
	# No volume in memory can have such a name.
	messages=/private/var/tart-kubelet/.termination-messages
	(umask 022; root mkdir -p "$messages") && emptied "$messages/${1##*/}" && root ln -s "$messages/${1##*/}" "$1" && emptied "$1"
}

working_dir() {
	[ -z "$1" ] || try test -d "$1" || { (umask 022; try mkdir -p "$1") && own "$1"; } ||
		fail StartError "the working directory $1 cannot be made in the guest"
}

odd_names() { [ -x /usr/bin/perl ] || notice "the guest has no perl to set variables that no shell can set: $1"; }

# From here on only the container's user can read the directory.
hand_over() {
	own "$dir"/* && own "$dir" || fail CreateContainerConfigError "the guest's user cannot give files to user $owner"
}

# As the container's user: others may not be allowed to see the program. In a new shell: functions of this script are no programs.
find_program() {
	as_user /bin/sh "$dir/enter" /bin/sh -c 'case $0 in */*) [ -x "$0" ] && [ ! -d "$0" ] ;; *) command -v "$0" ;; esac' "$1" ||
		fail StartError "cannot start \`$1\` in the guest: it has no such program; check \`command\` and the image"
}

ready() { printf 'user %s\nready %s %s\n' "${owner:-$(id -u)}" "$as" "$dir"; }
