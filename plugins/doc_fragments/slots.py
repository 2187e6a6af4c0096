# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The option `slots`, shared by every module that takes the whole list."""

from __future__ import annotations


class ModuleDocFragment:
    """What `slots_argument()` takes; a unit test holds the two equal."""

    DOCUMENTATION = r"""
options:
  slots:
    description:
      - The slots of this host, all of them; a slot that is missing here is left as it is.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description:
          - Name of the slot; its account is C(slot-NAME).
          - A lower-case letter, then at most 22 of a-z, 0-9 and dashes.
        type: str
        required: true
      enabled:
        description: Whether sessions may start in the slot.
        type: bool
        default: true
      provider:
        description: The coding CLI of the slot; V(shell) is built in.
        type: str
        default: shell
      mode:
        description:
          - How the slot is confined.
          - V(compatibility) shows the host read-only, without the places known to hold secrets; best effort.
          - V(isolated) shows nothing that is not listed, in a private HOME that stays.
          - V(verified) keeps only the state that a capability names, and needs a person's approval.
          - If left out, a slot keeps the mode that it has on the host, and a new one gets the host's default.
        type: str
        choices: [compatibility, isolated, verified]
      profile_version:
        description: The version of the provider's profile that is meant; with another one nothing is compiled.
        type: int
      capabilities:
        description: Keys of what the slot may do; the provider's own if left out.
        type: list
        elements: str
      approval:
        description: A person's approval of the slot's policy, for verified mode.
        type: dict
        suboptions:
          by:
            description: The person.
            type: str
            required: true
          "on":
            description: The day, as YYYY-MM-DD.
            type: str
            required: true
          fingerprint:
            description: The fingerprint of the policy, as C(slotctl policy) shows it.
            type: str
            required: true
      workspaces:
        description:
          - Names of the directories in which the CLI works.
          - A mapping with C(name) makes one narrower than its slot with C(read_only) (true), C(network) (none),
            C(credential) (false), C(without_capabilities) (keys) and C(without_binds) (targets).
        type: list
        elements: raw
        default: [main]
      masks:
        description: Paths of the host that are hidden in V(compatibility) mode besides those known to hold secrets.
        type: list
        elements: path
        default: []
      network:
        description:
          - What the slot reaches over the network.
          - V(private) is a network of the session's own with a way to the internet and none to the host's loopback.
          - V(host) is all that the host reaches, its loopback included, and its abstract sockets before Linux 6.12.
        type: str
        choices: [none, private, host]
        default: none
      forwards:
        description: TCP ports of the host's loopback that a V(private) network reaches, for a local model or proxy.
        type: list
        elements: int
        default: []
      docker:
        description: Whether the slot has a rootless Docker daemon of its own; refused with V(none) as its network.
        type: bool
        default: false
      nested_sandbox:
        description:
          - Whether programs in the slot's sessions may make a sandbox of their own with C(/usr/bin/bwrap). What runs in
            that one may not, where the host has AppArmor 4; elsewhere nothing keeps it from another.
        type: bool
        default: false
      resources:
        description: Limits of the slot, in systemd's notation.
        type: dict
        suboptions:
          memory_max:
            description: Memory of all the slot's processes, such as V(8G); no limit if left out.
            type: str
          cpu_quota:
            description: Processor time in percent of one processor, such as V(200%); no limit if left out.
            type: str
          tasks_max:
            description: Processes and threads of the slot.
            type: int
            default: 4096
          session_max:
            description: Longest run of one session, such as V(8h); no limit if left out.
            type: str
          tmp_size:
            description:
              - Size of each of C(/tmp), C(/var/tmp), C(/dev/shm), the run directory and, in V(verified) mode, HOME.
              - They live in memory, and count as the session's.
            type: str
            default: 1G
      binds:
        description: Paths of the host that the slot sees besides what every slot sees.
        type: list
        elements: dict
        default: []
        suboptions:
          source:
            description: The path on the host.
            type: path
            required: true
          target:
            description: The path in the slot; the same as O(slots[].binds[].source) if left out.
            type: path
          mode:
            description: Whether the slot may write there.
            type: str
            choices: [ro, rw]
            default: ro
          reason:
            description: Why the slot needs it, in a sentence; a bind without a reason does not compile.
            type: str
            required: true
      credential:
        description: One secret for the slot's CLI, given to it as an environment variable.
        type: dict
        suboptions:
          name:
            description: Name of the environment variable.
            type: str
            required: true
          value:
            description:
              - The secret, printable ASCII without spaces; one line break at its end is dropped.
              - Needed only by the module M(confined.slots.credentials), others need not be given it.
            type: str
          expires:
            description:
              - The day, such as V(2027-03-31), on which the secret is good no more, where that is known.
              - A scheduled session that would end later is refused.
            type: str
      schedules:
        description: Sessions that systemd starts without a person; the module M(confined.slots.schedule) keeps them.
        type: list
        elements: dict
        default: []
        suboptions:
          name:
            description: A lower-case letter, then at most 31 of a-z, 0-9 and dashes.
            type: str
            required: true
          calendar:
            description: When, as systemd's C(OnCalendar=) takes it, such as V(Mon..Fri 03:00).
            type: str
            required: true
          workspace:
            description: The workspace to work in; the slot's first if left out.
            type: str
          prompt:
            description:
              - What the CLI is to do, one or more lines that reach it byte for byte.
              - Either this or O(slots[].schedules[].arguments) is needed.
            type: str
          arguments:
            description: The CLI's arguments, for one that is not given a prompt.
            type: list
            elements: str
          timeout:
            description: How long a run may take, such as V(2h); it is stopped then, and has failed.
            type: str
            default: 1h
      console_password_hash:
        description:
          - Hash in crypt(3) form of a password with which the slot's account logs in at the console.
          - The account's password is locked if left out.
        type: str
"""
