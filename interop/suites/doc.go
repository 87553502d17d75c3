//go:build e2e

// Package suites pins the module of etcd's own tests, which run builds.
package suites

import (
	_ "go.etcd.io/etcd/tests/v3/framework"
	_ "go.etcd.io/etcd/tests/v3/robustness/scenarios"
	_ "go.etcd.io/etcd/tests/v3/robustness/validate"
)
