# What makes a guest a container's place: functions, called by what `script.rs` writes after them. Everything is said on
# standard output, a line each: `notice WORDS`, `failed REASON WORDS`, or at last `ready HOW DIRECTORY`.
#
# The shell of macOS is bash 3.2 as a POSIX shell. It ends when it cannot open a file for one of its special commands, `:` among
# them, and inside of `$(` it takes the `)` of a `case` for the end unless there is a `(`, too.

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

pipe() { mkfifo "$dir/$1" || fail CreateContainerError 'the guest has no room in /var/tmp'; }
put() { printf '%s' "$2" >"$dir/$1" || fail CreateContainerError 'the guest has no room in /var/tmp'; }
own() { [ -z "$owner" ] || root chown "$owner" "$@"; }

host_name() {
	root scutil --set HostName "$1" >/dev/null || root hostname "$1" || notice "the guest keeps its own host name"
}

# A container that is tried again may find its lines there.
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

# The servers and search domains that names are looked up with; those that the guest has come first, unless they are to go.
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
	# macOS writes the file, a moment later.
	tries=0
	until [ "$(known nameserver)" = "${servers:-$(known nameserver)}" ] && [ "$(known search)" = "${domains:-$(known search)}" ]; do
		tries=$((tries + 1))
		[ $tries -le 50 ] || { notice "the guest's /etc/resolv.conf does not show the Pod's dnsConfig"; break; }
		sleep 0.1 </dev/null
	done
}

# What /etc/resolv.conf says for a word, then the rest of the words, each once.
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

# Sudo knows the guest's own users and their groups only. For any other number, and for further groups, there is chroot, which changes
# the user, but not the root here.
be() {
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
		# More than these no process of macOS can have.
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
	# Chroot tells a user neither its name nor where it is at home; for one whom the guest does not know, nobody can.
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

# Shares come a moment after the guest. Which part of one is meant may be secret, so that nobody is told.
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
	make_way "$2"
	try ln -s "$1" "$path" || cannot_mount "$2"
}

# Of files that the host has; what is missing is an empty directory.
mount_or_empty() {
	await "$1" "$3"
	if try test -e "$2"; then
		mount_at "$2" "$3"
	else
		make_way "$3"
		(umask 022; try mkdir "$path") || cannot_mount "$3"
	fi
}

# What containers before this one have not made in a volume.
make_part() {
	await "$1" "$4"
	try test -e "$3" || (umask "$2"; try mkdir -p "$3") || cannot_make "$4"
}

# Leaves nothing at a path, which is then $path, but all that is needed above it.
make_way() {
	path=$1
	# The image's own links are followed, as /tmp is one; that of a container before, or one that leads nowhere, goes.
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
	# What the image has there is hidden, as a mount would hide it. What came after that is of a container before.
	[ ! -e "$path.hidden-by-volume" ] || try rm -rf "$path" || cannot_mount "$1"
	[ ! -e "$path" ] || rmdir "$path" 2>/dev/null || try mv "$path" "$path.hidden-by-volume" || cannot_mount "$1"
}

# A file system in memory, for all containers of the guest, and the part of it that is wanted.
in_memory() {
	case $(PATH=$PATH:/sbin; mount) in
	*" on $1 "*) ;;
	*)
		size=$2
		[ "$size" != 0 ] || size=
		(umask 022; root mkdir -p "$1") && root /sbin/mount_tmpfs ${size:+-s "$size"} "$1" && root chmod 777 "$1" ||
			fail CreateContainerError "volume ${1##*/} cannot be had in the guest's memory: it has no mount_tmpfs, or its user may not use sudo without a password"
		;;
	esac
	try test -e "$3" || (umask 0; try mkdir -p "$3") || cannot_make "$4"
}

cannot_make() { fail CreateContainerError "the subPath of volume mount $1 cannot be made in the guest"; }

cannot_mount() {
	root true || fail CreateContainerError "volume mount $1 cannot be had in the guest: its user may not write there, nor use sudo without a password; choose another path or image"
	fail CreateContainerError "volume mount $1 cannot be had in the guest: macOS seals its root; choose a path below /Users, /private, /opt, /usr/local, /Library or /Volumes, or an image that has the directory"
}

last_words() {
	parent=${1%/*}
	[ -d "${parent:-/}" ] || (umask 022; try mkdir -p "$parent")
	emptied "$1" || linked "$1" || notice "no termination message can be left at $1 in the guest"
}

emptied() { { true >"$1" && chmod 666 "$1"; } 2>/dev/null || root sh -c 'true >"$0" && chmod 666 "$0"' "$1"; }

# Among its devices macOS takes no files, but links. The usual path of a termination message is one there.
linked() {
	case $1 in /dev/*/*) return 1 ;; /dev/*) ;; *) return 1 ;; esac
	# No volume in memory has such a name.
	words=/private/var/tart-kubelet/.last-words
	(umask 022; root mkdir -p "$words") && emptied "$words/${1##*/}" && root ln -s "$words/${1##*/}" "$1" && emptied "$1"
}

work_in() {
	[ -z "$1" ] || try test -d "$1" || { (umask 022; try mkdir -p "$1") && own "$1"; } ||
		fail StartError "the working directory $1 cannot be made in the guest"
}

odd_names() { [ -x /usr/bin/perl ] || notice "the guest has no perl to set variables that no shell can set: $1"; }

# From here on only the container's user can look into the directory.
hand_over() {
	own "$dir"/* && own "$dir" || fail CreateContainerConfigError "the guest's user cannot give files to user $owner"
}

# Others may not be allowed to see the program, and functions of this script are none.
find_program() {
	as_user /bin/sh "$dir/enter" /bin/sh -c 'case $0 in */*) [ -x "$0" ] && [ ! -d "$0" ] ;; *) command -v "$0" ;; esac' "$1" ||
		fail StartError "cannot start \`$1\` in the guest: it has no such program; check \`command\` and the image"
}

ready() { printf 'ready %s %s\n' "$as" "$dir"; }
