# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Every target is one command of tests/tools, which needs nothing but Python's standard library.

PYTHON ?= python3

help setup demo test test-vm lint unit sanity browser molecule certify bench clean:
	@exec $(PYTHON) -B tests/tools $@

.PHONY: help setup demo test test-vm lint unit sanity browser molecule certify bench clean
