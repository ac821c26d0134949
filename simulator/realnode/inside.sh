#!/usr/bin/env bash
# The first process of a real node, in mount, network and process namespaces of its own: what it hides and adds, only the
# node sees, and everything ends with it. Usage: inside.sh FOLDER CGROUP ADDRESS
set -euo pipefail
folder=$1 cgroup=$2 address=$3

mount --make-rprivate /
mount -t proc proc /proc
for path in /var/lib /var/log /run; do
  mkdir -p "$folder$path"
  mount --bind "$folder$path" "$path"
done
mkdir -p /run/containerd /var/lib/kubelet /var/log/pods

# The kubelet sets these unless they are so already; they are the whole machine's.
while read -r name value; do
  echo "$value" >"$folder/$(basename "$name")"
  [ ! -e "/proc/sys/$name" ] || mount --bind "$folder/$(basename "$name")" "/proc/sys/$name"
done <<'SYSCTLS'
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
SYSCTLS
mount --make-rshared /

# Version 1 has a tree for each controller, version 2 one for all.
for tree in /sys/fs/cgroup /sys/fs/cgroup/*; do
  [ ! -e "$tree/cgroup.procs" ] || mkdir -p "$tree/$cgroup"
done

ip link set lo up
ip link add cni0 type bridge
ip address add "$address/24" dev cni0
ip link set cni0 up
ip route add default dev cni0

trap 'exit 0' TERM
touch "$folder/ready"
while :; do
  sleep 3600 &
  wait $!
done
