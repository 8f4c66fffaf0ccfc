#!/bin/sh
# Has macOS lend addresses to VMs for minutes instead of a day, so that a Mac which starts many VMs does not run out of them.
#
#   sudo sh dhcp-lease-time.sh [SECONDS]
#
# SECONDS is 600 unless it is given. It may be run any number of times: what is as it should be is left alone. It needs no restart, and
# leases that were given before keep their time. Exit status: 0 when the lease time is SECONDS, 1 when it could not be set, 2 when it was
# asked for something impossible.

set -eu

preferences=/Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist

refuse() {
	echo "dhcp-lease-time: $2" >&2
	exit "$1"
}

# The lease time that is set, in seconds; nothing when none is, and macOS lends for a day.
lease_time() {
	defaults read "$preferences" bootpd 2>/dev/null |
		sed -n 's/^[[:space:]]*"\{0,1\}DHCPLeaseTimeSecs"\{0,1\}[[:space:]]*=[[:space:]]*"\{0,1\}\([0-9]*\)"\{0,1\};$/\1/p'
}

# All of it in a function, so that a script which arrives only in part does nothing.
main() {
	[ "$#" -le 1 ] || refuse 2 "usage: sudo sh dhcp-lease-time.sh [SECONDS]"
	seconds=${1-600}
	case $seconds in
	'' | 0* | *[!0-9]* | ??????*) refuse 2 "\`$seconds\` is no number of seconds from 60 to 86400" ;;
	esac
	if [ "$seconds" -lt 60 ] || [ "$seconds" -gt 86400 ]; then
		refuse 2 "\`$seconds\` is no number of seconds from 60 to 86400"
	fi
	[ "$(uname -s)" = Darwin ] || refuse 2 "only macOS lends addresses to VMs in this way; this is $(uname -s)"
	command -v defaults >/dev/null || refuse 1 "there is no \`defaults\` in $PATH"

	before=$(lease_time)
	if [ "$before" = "$seconds" ]; then
		echo "addresses are lent to VMs for $seconds s already; nothing was changed"
		return
	fi
	[ "$(id -u)" = 0 ] || refuse 1 "only root can set the lease time: run this with sudo"
	# Whatever else is set for bootpd stays.
	defaults write "$preferences" bootpd -dict-add DHCPLeaseTimeSecs -int "$seconds" ||
		refuse 1 "\`defaults\` could not write $preferences"
	after=$(lease_time)
	[ "$after" = "$seconds" ] || refuse 1 "$preferences has lease time \`$after\` after \`$seconds\` was written to it"
	echo "addresses were lent to VMs for ${before:-86400} s, and are for $seconds s from now on"
}

main "$@"
