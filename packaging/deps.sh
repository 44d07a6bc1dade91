#!/usr/bin/env bash
# Installs what building and running forkd needs on Debian 12 or 13 (as root; Rust is not installed by it).
# Quick where all of it is there. The sources of apt are left as they are.
set -euo pipefail

# To build: a C compiler and a static C library (SQLite, zstd and xz are compiled in).
# To make images, kernels and the machine's disk: mmdebstrap, e2fsprogs, kmod, xz-utils, zstd.
# To run the machine: QEMU, a static busybox, ssh. To run natively: nftables, iproute2. To test: numpy, a registry.
packages=(
    busybox-static ca-certificates debian-archive-keyring docker-registry e2fsprogs gcc iproute2 kmod libc6-dev make
    mmdebstrap nftables openssh-client python3 python3-numpy xz-utils zstd
)
qemu=qemu-system-x86
wanted_qemu=10

export DEBIAN_FRONTEND=noninteractive

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

qemu_major() {
    { qemu-system-x86_64 --version 2>/dev/null || true; } | sed -n 's/^QEMU emulator version \([0-9]*\)\..*/\1/p'
}

install_packages() {
    echo "installing $*"
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# QEMU 10 emulates about half as fast again as 7.2. Debian 12 has it in its backports, which apt is shown for
# this one call: a copy of its sources with one more, and a copy of its lists.
qemu_from_backports() {
    local codename uri keyring=/usr/share/keyrings/debian-archive-keyring.gpg scratch
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    uri=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
        sed -n "s/^$codename //p" | head -n 1)
    [ -n "$uri" ] || return 1
    scratch=$(mktemp -d)
    # apt reads as a user of its own.
    chmod 755 "$scratch"
    cp -a /etc/apt/sources.list.d "$scratch/sources"
    cp -a /var/lib/apt/lists "$scratch/lists"
    echo "deb [signed-by=$keyring] $uri $codename-backports main" >"$scratch/sources/forkd-backports.list"
    local shown=(-o "Dir::Etc::SourceParts=$scratch/sources" -o "Dir::State::Lists=$scratch/lists")
    local outcome=0
    apt-get "${shown[@]}" update -qq >/dev/null &&
        apt-get "${shown[@]}" install -y -qq --no-install-recommends -t "$codename-backports" "$qemu" >/dev/null ||
        outcome=1
    rm -rf "$scratch"
    return $outcome
}

missing=()
for package in "${packages[@]}"; do
    installed "$package" || missing+=("$package")
done
major=$(qemu_major)
if [ ${#missing[@]} -eq 0 ] && [ "${major:-0}" -ge "$wanted_qemu" ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "run as root: packages are missing (${missing[*]:-} ${qemu})" >&2
    exit 1
fi

apt-get update -qq
if [ ${#missing[@]} -gt 0 ]; then
    install_packages "${missing[@]}"
fi
candidate=$(apt-cache policy "$qemu" | sed -n 's/^ *Candidate: *\([0-9]*:\)\{0,1\}\([0-9]*\)\..*/\2/p')
if [ "${major:-0}" -lt "$wanted_qemu" ] && [ "${candidate:-0}" -lt "$wanted_qemu" ]; then
    echo "installing $qemu from backports"
    qemu_from_backports || echo "no $qemu $wanted_qemu in backports" >&2
fi
# Whatever version there is, where a newer one could not be had.
installed "$qemu" || install_packages "$qemu"
major=$(qemu_major)
if [ "${major:-0}" -lt "$wanted_qemu" ]; then
    echo "note: QEMU ${major:-?} works, and emulates at about half the speed of version $wanted_qemu" >&2
fi
