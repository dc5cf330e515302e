# Shared by the scripts of this folder; source it. Says what it does, and what to do when something fails.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
started=$SECONDS

step() { printf '\n\033[1m[%4ds] %s\033[0m\n' $((SECONDS - started)) "$*"; }
fail() { printf '\nFAILED: %s\n' "$*" >&2; exit 1; }

packages=(g++ cmake ninja-build ccache git pkg-config ca-certificates openssl curl python3 libgrpc++-dev libprotobuf-dev
  protobuf-compiler protobuf-compiler-grpc libabsl-dev libboost1.81-dev libsodium-dev libxxhash-dev libspdlog-dev libcli11-dev
  libgtest-dev libgmock-dev spin)

# Installs what is missing of these and of those that are named; as root or through sudo. Takes no time when everything is there.
install_packages() {
  local missing=() name
  for name in "${packages[@]}" "$@"; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  # An npm from elsewhere conflicts with Debian's; any npm will do.
  command -v npm >/dev/null || missing+=(npm)
  [ ${#missing[@]} -eq 0 ] && return 0
  step "installing ${#missing[@]} Debian packages: ${missing[*]}"
  command -v apt-get >/dev/null || fail "apt-get is missing. Cofferdam is built on Debian 12; elsewhere install the equivalents of: ${missing[*]}"
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "installing packages needs root. Run as root, or install sudo, or install by hand: ${missing[*]}"
    sudo=(sudo)
  fi
  local log; log=$(mktemp)
  { "${sudo[@]}" apt-get update -qq && DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 ||
    { tail -n 15 "$log" >&2; fail "apt-get could not install the packages (above: its last lines). Is the network up, and is this Debian 12?"; }
  rm -f "$log"
}

# configure PRESET, then build TARGET… in that preset's folder.
build_preset() {
  local preset=$1; shift
  local folder=$root/build
  [ "$preset" = release ] || folder=$root/build-$preset
  step "configuring ($preset)"
  # What takes minutes in there is the first build of llama.cpp: its lines are shown.
  (cd "$root" && cmake --preset "$preset" 2>&1 | tee .configure.log | { grep --line-buffered '^build-llama: ' || true; }) ||
    { tail -n 25 "$root/.configure.log" >&2; fail "cmake could not configure; the whole log is .configure.log"; }
  # With debug information, what the compiler makes depends on the folder: without these, no clone would find another's work in ccache.
  case $preset in asan | tsan) export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 ;; *) unset CCACHE_BASEDIR CCACHE_NOHASHDIR ;; esac
  step "building ($preset)"
  ninja -C "$folder" "$@" || fail "the build failed; the first error stands above"
}
