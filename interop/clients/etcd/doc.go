// Package etcd pins the module of etcd's own tests, which interop/clients/suites builds.
package etcd

import _ "go.etcd.io/etcd/tests/v3/framework/e2e"
