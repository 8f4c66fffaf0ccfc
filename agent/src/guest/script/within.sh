# Runs a command for at most so many seconds, then kills it with all that it has started. The guest agent can kill processes of its own
# user only, and some guest agents kill only the process that they have started. So the process with the timer runs as the container's
# user, and is not the process that the guest agent knows. Every macOS has perl.
limit=$1
shift
[ -x /usr/bin/perl ] || exec "$@"
exec /usr/bin/perl -e '
	sub end_of {
		my $done;
		do { $done = waitpid $_[0], 0 } until $done == $_[0] || ($done < 0 && $! != 4);
		return $? & 127 ? 128 + ($? & 127) : $? >> 8;
	}
	my $limit = shift;
	my $keeper = fork;
	exit 126 unless defined $keeper;
	exit end_of($keeper) if $keeper;
	setpgrp;
	my $command = fork;
	exit 126 unless defined $command;
	unless ($command) {
		setpgrp;
		exec { $ARGV[0] } @ARGV;
		exit 127;
	}
	$SIG{ALRM} = sub { kill "KILL", -$command };
	alarm $limit;
	exit end_of($command);
' "$limit" "$@"
