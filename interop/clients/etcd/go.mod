module kv-server/interop/clients/etcd

go 1.26.0

require go.etcd.io/etcd/tests/v3 v3.7.1
