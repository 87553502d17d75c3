#!/bin/sh
# Builds real etcd and its tools, in the versions that go.mod pins, into interop/bin/.
# The versions of all their dependencies are pinned there as well: the same etcd every time.
set -eu
cd "$(dirname "$0")"
mkdir -p bin
build() { go build -trimpath -o "bin/$1" "$2"; }
build etcd      go.etcd.io/etcd/server/v3
build etcdctl   go.etcd.io/etcd/etcdctl/v3
build etcdutl   go.etcd.io/etcd/etcdutl/v3
build benchmark go.etcd.io/etcd/v3/tools/benchmark
build h2spec    github.com/summerwind/h2spec/cmd/h2spec
bin/etcd --version
