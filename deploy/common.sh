# What the scripts beside this file share. Sourced by them, after `set -euo pipefail`.
#
# Where a compiler comes from, in this order: $RUSTC; `rustc` on the path; Debian's /usr/bin/rustc; rustup, which is asked to add the
# target; apt, which is asked for Debian's compiler. The first that has the standard library of every wanted target is taken, so that one
# release never mixes two compilers.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
out=$CARGO_TARGET_DIR/deploy

x86=x86_64-unknown-linux-gnu
arm=aarch64-unknown-linux-gnu

say() { echo "$(basename "$0"): $*" >&2; }
die() { say "$*"; exit 1; }

# The version of all programs.
version() { sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml"; }

# Whether programs for the target run on this machine as they are.
native() { [[ $(uname -m) == "${1%%-*}" ]]; }

# The binutils and the C compiler of a target. Natively they have no prefix.
tool() {
    local target=$1 name=$2
    if native "$target"; then echo "$name"; else echo "${target%%-*}-linux-gnu-$name"; fi
}

# Installs Debian packages, where this is Debian and we may; says what is missing where we may not.
packages() {
    local missing=() name
    for name in "$@"; do
        [[ $(dpkg-query -W -f '${Status}' "$name" 2>/dev/null) == 'install ok installed' ]] || missing+=("$name")
    done
    [[ ${#missing[@]} -eq 0 ]] && return
    local arm_wanted=
    [[ " ${missing[*]} " == *:arm64\ * ]] && arm_wanted='dpkg --add-architecture arm64 && '
    [[ $(id -u) -eq 0 && -n $(command -v apt-get) ]] ||
        die "please install, as root: ${arm_wanted}apt-get update && apt-get install ${missing[*]}"
    say "installing ${missing[*]}"
    [[ -z $arm_wanted ]] || dpkg --add-architecture arm64
    {
        apt-get update -q
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
    } >&2
}

has_std() {
    local compiler=$1 target directory
    shift
    for target in "$@"; do
        directory=$("$compiler" --print target-libdir --target "$target" 2>/dev/null) || return
        compgen -G "$directory/libstd-*.rlib" >/dev/null || return
    done
}

# Sets RUSTC and CARGO for all the given targets, installing what is missing.
find_rust() {
    local compiler
    for compiler in "${RUSTC:-}" "$(command -v rustc || true)" /usr/bin/rustc; do
        if [[ -x $compiler ]] && has_std "$compiler" "$@"; then found_rust "$compiler"; return; fi
    done
    if command -v rustup >/dev/null && rustup target add "$@" >&2 && has_std rustc "$@"; then
        found_rust "$(command -v rustc)"
        return
    fi
    packages cargo-web rustc-web libstd-rust-web-dev:amd64 libstd-rust-web-dev:arm64
    has_std /usr/bin/rustc "$@" || die "/usr/bin/rustc lacks the standard library of one of: $*"
    found_rust /usr/bin/rustc
}

found_rust() {
    export RUSTC=$1
    command -v cargo >/dev/null || packages cargo-web
    say "compiler: $("$RUSTC" --version), $RUSTC"
}

# A C compiler for each target: the allocator is written in C, and it links.
find_c() {
    local target
    for target in "$@"; do
        if native "$target"; then
            command -v gcc >/dev/null && command -v objcopy >/dev/null || packages gcc libc6-dev binutils
        elif [[ $target == "$arm" ]]; then
            command -v aarch64-linux-gnu-gcc >/dev/null || packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross
        else
            command -v x86_64-linux-gnu-gcc >/dev/null || packages gcc-x86-64-linux-gnu libc6-dev-amd64-cross
        fi
    done
}

# Cargo's settings for one target. Paths of this machine are kept out of the programs: they would differ on the next one.
settings() {
    local target=$1 name=${1//-/_} home=${CARGO_HOME:-$HOME/.cargo}
    local upper=${name^^}
    # Flags of the user's would not be in the commit.
    unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS
    export CARGO_INCREMENTAL=0
    export "CARGO_TARGET_${upper}_LINKER=$(tool "$target" gcc)"
    export "CARGO_TARGET_${upper}_RUSTFLAGS=--remap-path-prefix=$home=/cargo --remap-path-prefix=$root=/kv-server --remap-path-prefix=$CARGO_TARGET_DIR=/target -Clink-arg=-Wl,--build-id=sha1"
    export "CC_$name=$(tool "$target" gcc)" "AR_$name=$(tool "$target" ar)"
    export "CFLAGS_$name=-ffile-prefix-map=$home=/cargo -ffile-prefix-map=$CARGO_TARGET_DIR=/target"
}

# Sets SOURCE_COMMIT and SOURCE_DATE_EPOCH, unless they are given: from git, where this is a clone.
name_source() {
    local commit
    if [[ -z ${SOURCE_COMMIT:-} ]] && commit=$(git -C "$root" rev-parse HEAD 2>/dev/null); then
        [[ -z $(git -C "$root" status --porcelain) ]] || commit+=' (modified)'
        export SOURCE_COMMIT=$commit
    fi
    if [[ -z ${SOURCE_DATE_EPOCH:-} ]] && git -C "$root" rev-parse HEAD >/dev/null 2>&1; then
        SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct)
        export SOURCE_DATE_EPOCH
    fi
}

# Where the programs of a target are. Those of another profile are kept apart from what ships.
programs() {
    local target=$1 profile=$2
    if [[ $profile == dist ]]; then echo "$out/$target"; else echo "$out/$profile/$target"; fi
}

# A bare root of a target's architecture, Debian's smallest, kept in $ROOTS for the next time. As in Debian's images, its
# packages come from the security archive as well, which alone has a compiler that is new enough.
roots=${ROOTS:-/var/tmp/kv-server-roots}
declare -A debian=([$x86]=amd64 [$arm]=arm64)

# Where the system's own apt fetches a suite of Debian from.
archive() {
    apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null |
        awk -v suite="$1" '$1 == suite {print $2; exit}'
}

make_root() {
    local target=$1 dir=$roots/${debian[$1]} foreign=() mirror security
    mirror=${DEBIAN_MIRROR:-$(archive bookworm)} security=${DEBIAN_SECURITY_MIRROR:-$(archive bookworm-security)}
    [[ $mirror && $security ]] || die "apt knows no archive of Debian 12: set DEBIAN_MIRROR and DEBIAN_SECURITY_MIRROR"
    mkdir -p "$roots"
    # Programs of it are run as root: no other user may have made it.
    [[ -O $roots && ! -L $roots ]] || die "$roots belongs to another user"
    [[ -e $dir/.complete ]] && return
    rm -rf "$dir"
    native "$target" || foreign=(--foreign)
    say "debootstrap for ${debian[$target]}"
    debootstrap --variant=minbase --arch="${debian[$target]}" "${foreign[@]}" bookworm "$dir" "$mirror" >"$dir.log" 2>&1
    echo "deb $security bookworm-security main" >>"$dir/etc/apt/sources.list"
    if native "$target"; then
        chroot "$dir" apt-get install -q -y --no-install-recommends systemd-sysv >>"$dir.log" 2>&1
    else
        cp "/usr/bin/qemu-${target%%-*}-static" "$dir/usr/bin/"
    fi
    touch "$dir/.complete"
}
