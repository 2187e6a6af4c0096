# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Landlock's scope: no abstract socket and no signal beyond the session, also where it shares the host's network.

It comes into force inside the sandbox, as the last thing before the CLI: it would set no_new_privs for the launcher,
which then could not change to bwrap's AppArmor profile. Perl makes the calls, since each Debian has it and it starts in
a millisecond. On the launcher's hot path: imports nothing.
"""

from __future__ import annotations

SCOPE_ABI = 6  # Linux 6.12
ABSTRACT_SOCKETS_AND_SIGNALS = "3"

PERL = "/usr/bin/perl"

# The numbers of the system calls are the same on every architecture. Under no_new_privs, which bwrap has set, anybody
# may restrict themselves. What is executed after it has the default dispositions again, as env(1) would give it.
_PROGRAM = """\
my ($scope, @signals) = split /,/, shift;
my $rules = pack 'QQQ', 0, 0, $scope;
my $made = syscall 444, $rules, length $rules, 0;
if ($made < 0 || syscall(446, $made, 0) != 0) {
    print STDERR "slot-launcher: sandbox-unavailable: Landlock: $! [converge the host: its kernel has changed]\\n";
    exit 125;
}
$SIG{$_} = 'DEFAULT' for @signals;
exec { $ARGV[0] } @ARGV;
my $status = $! == 2 ? 127 : 126;  # ENOENT; asking for its name loads three modules
print STDERR "$ARGV[0]: $!\\n";
exit $status;
"""


def scoped(scope: str, signals: tuple[str, ...], words: list[str]) -> list[str]:
    """Return the command line that runs words within a scope, with the default dispositions of these signals."""
    return [PERL, "-e", _PROGRAM, "--", ",".join((scope, *signals)), *words]
