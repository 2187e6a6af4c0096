# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operator's tool. Each subcommand is a module, imported when it is asked for, since `run` must start fast."""
