#!/bin/bash
# Hidden validator. Writes 1 or 0 to /logs/verifier/reward.txt, whatever the submission does.
REWARD=/logs/verifier/reward.txt
reward() {
  # A link or a folder in its place would lead the number elsewhere.
  if [ -L "$REWARD" ] || [ -d "$REWARD" ]; then rm -rf "$REWARD"; fi
  printf '%s\n' "$1" > "$REWARD"
}
[ -d /logs/verifier ] || mkdir -p /logs/verifier
reward 0
if timeout -k 1 "@LIMIT@" python3 -I -S /tests/check.py; then
  reward 1
else
  reward 0
fi
