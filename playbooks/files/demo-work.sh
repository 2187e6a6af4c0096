# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# shellcheck shell=bash
# Ordinary work: a repository in the private HOME, a clone in the workspace, a build, a result.

set -eu
rm -rf "$HOME/project.git" project
git config --global user.name coder
git config --global user.email coder@localhost
git config --global init.defaultBranch main
git init --quiet --bare "$HOME/project.git"
git clone --quiet "$HOME/project.git" project 2>/dev/null
cd project
printf '#include <stdio.h>\nint main(void) { puts("built inside the slot"); return 0; }\n' >hello.c
printf 'hello: hello.c\n' >Makefile
git add . && git commit --quiet -m "Say hello" && git push --quiet
echo "  git: $(git log --oneline | head -n 1)"
make --quiet hello
./hello | tee result.txt | sed 's/^/  hello: /'
