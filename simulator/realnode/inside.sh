#!/usr/bin/env bash
# The first process of a real node, in mount and network namespaces of its own: what it hides and adds, only the node sees.
# However it ends, a second process ends all others of the node and removes its cgroups. The PID namespace is the
# machine's, as on a real node: the exporter asks for that. Usage: inside.sh FOLDER CGROUP ADDRESS
set -euo pipefail
folder=$1 cgroup=$2 address=$3

mount --make-rprivate /
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

# Version 1 has a tree for each controller; machines with version 2 are refused.
for tree in /sys/fs/cgroup/*; do
  [ ! -e "$tree/cgroup.procs" ] || mkdir -p "$tree/$cgroup/runtime"
done
setsid bash -c '
  while grep -qv ") Z" "/proc/$1/stat"; do sleep 0.2; done
  while folders=$(find /sys/fs/cgroup/*/"$2" -depth -type d); [ -n "$folders" ]; do
    for folder in $folders; do
      while read -r process; do kill -9 "$process"; done <"$folder/cgroup.procs"
      rmdir "$folder"
    done
    sleep 0.1
  done' - $$ "$cgroup" >/dev/null 2>&1 &

ip link set lo up
ip link add cni0 type bridge
ip address add "$address/24" dev cni0
ip link set cni0 up
ip route add default dev cni0

touch "$folder/ready"
exec sleep infinity
