# Sourced by every script: where downloads and builds are kept. Outside the tree, so that a fresh clone starts warm.
export FIRN_CACHE=${FIRN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/firn}
