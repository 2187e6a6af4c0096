# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# shellcheck shell=bash
# What a model's shell might try. Every line must end in "refused".

# shellcheck disable=SC2016  # the inner shells expand
reached=0
attempt() {
  local what=$1 said
  shift
  if said=$("$@" 2>&1); then
    reached=$((reached + 1))
    printf '  %-52s REACHED %s\n' "$what" "${said:0:40}"
  else
    said=${said##*: }
    printf '  %-52s refused: %s\n' "$what" "${said:0:48}"
  fi
}

state=/var/lib/confined-slots/slots
attempt "read another slot's file" cat "$state/reviewer/workspaces/main/secret"
attempt "list another workspace of its own slot" ls "$state/coder/workspaces/review"
attempt "list the home of its own account" ls "$state/coder/home"
attempt "read another slot's credential" cat /etc/confined-slots/credentials/build-er/shell.env
attempt "read its own policy" cat /etc/confined-slots/slots.d/coder/policy.json
attempt "list root's home" ls /root
attempt "read the host's password hashes" cat /etc/shadow
attempt "read the host's logs" ls /var/log
attempt "change a program" touch /usr/bin/evil
attempt "add a file to /etc" touch /etc/evil
attempt "change the launcher" touch /opt/confined-slots/current/bin/slot-launcher
attempt "talk to Docker" ls /var/run/docker.sock
attempt "talk to systemd" systemctl --no-pager list-units
attempt "start a unit outside" systemd-run --user true
attempt "connect to the host's SSH" bash -c 'exec 3<>/dev/tcp/127.0.0.1/22'
attempt "make a user namespace" unshare --user true
attempt "become root" sudo -n true
attempt "find a process of the host" bash -c '[ "$(cat /proc/1/comm)" != bwrap ] || { echo "process 1 is its own sandbox" >&2; exit 1; }'
attempt "find a secret in the environment of process 1" bash -c 'grep -q . /proc/1/environ || { echo "empty" >&2; exit 1; }'
attempt "find an inherited descriptor" ls /proc/self/fd/7
[ "$reached" = 0 ]
