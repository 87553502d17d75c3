// Package vitess runs the tests that Vitess has for each store of its topology, with its package etcd2topo.
//
// ENDPOINTS are host:port. CA, CERT and KEY are files, which may be missing.
package vitess

import (
	"fmt"
	"os"
	"testing"

	"vitess.io/vitess/go/vt/proto/topodata"
	"vitess.io/vitess/go/vt/servenv"
	"vitess.io/vitess/go/vt/topo"
	_ "vitess.io/vitess/go/vt/topo/etcd2topo"
	"vitess.io/vitess/go/vt/topo/test"
)

// Vitess looks for keys with a lease in a list of keys only. Since 3.7, etcd lists these without their leases. So three
// tests find locks and elections that are "not ephemeral", and these two would wait for each other.
var left = []string{"checkShardWithLock", "checkTryLock"}

func TestTopology(t *testing.T) {
	err := servenv.GetFlagSetFor("vtctld").Parse([]string{
		"--topo-etcd-tls-ca", os.Getenv("CA"), "--topo-etcd-tls-cert", os.Getenv("CERT"),
		"--topo-etcd-tls-key", os.Getenv("KEY"),
	})
	if err != nil {
		t.Fatal(err)
	}
	address, count := os.Getenv("ENDPOINTS"), 0
	test.TopoServerTestSuite(t, t.Context(), func() *topo.Server {
		count++
		server, err := topo.OpenServer("etcd2", address, fmt.Sprintf("/app/%d/global", count))
		if err != nil {
			t.Fatal(err)
		}
		cell := &topodata.CellInfo{ServerAddress: address, Root: fmt.Sprintf("/app/%d/cell", count)}
		if err := server.CreateCellInfo(t.Context(), test.LocalCellName, cell); err != nil {
			t.Fatal(err)
		}
		return server
	}, left)
}
