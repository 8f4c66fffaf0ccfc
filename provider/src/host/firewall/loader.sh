#!/bin/sh
# Written by tart-provider. Keeps the rules for VMs in pf, the packet filter.
# launchd runs this script at boot and every minute. No other program loads these rules.
# It touches neither the main ruleset nor /etc/pf.conf: that would cut VMs off from their network.
set -u
umask 077

anchor='@ANCHOR@'
rules='@RULES@'
state='@STATE@'

fail() {
	echo "$1" >&2
	echo "$1" >"$state/error"
	exit 1
}

mkdir -p "$state" || exit 1

# What is loaded is what is recorded as loaded, though the file changes meanwhile.
cp "$rules" "$state/rules" || fail "cannot read $rules"
attempt=1
until message=$(pfctl -a "$anchor" -f "$state/rules" 2>&1); do
	[ "$attempt" -lt 5 ] || fail "pfctl does not load the rules: $message"
	attempt=$((attempt + 1))
	sleep 1
done

# pf stays on while a program holds a reference. The script takes one after each boot, and no second while that one is held.
# pfctl itself writes the token, so that it is known though the script dies.
references=$(pfctl -s References 2>&1) || fail "pfctl does not tell who holds pf: $references"
token=$(sed -n 's/^Token : //p' "$state/reference" 2>/dev/null)
if [ -z "$token" ] || ! echo "$references" | grep -q "[[:space:]]$token[[:space:]]"; then
	pfctl -E >/dev/null 2>"$state/reference" || fail "pfctl does not switch pf on: $(cat "$state/reference")"
fi

pfctl -s rules 2>/dev/null | grep -q '^anchor "com\.apple/\*"' ||
	fail 'the main ruleset of pf does not evaluate com.apple/*: restart the Mac'

mv "$state/rules" "$state/loaded" || fail "cannot write $state/loaded"
rm -f "$state/error"
