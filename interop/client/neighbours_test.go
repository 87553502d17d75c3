package client

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"kv-server/interop/internal/process"
)

// background runs one of etcd's own programs until the test ends.
func background(t *testing.T, name string, args ...string) {
	t.Helper()
	path := built(t, name)
	command := exec.Command(path, args...)
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s printed:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
}

// built is the path of a program that build.sh makes.
func built(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("left out: no %s; run interop/build.sh", path)
	}
	return path
}

// through starts a sub-command of etcd that forwards requests to the shared cluster, and connects to it.
func through(t *testing.T, subcommand string, flags ...string) *clientv3.Client {
	t.Helper()
	ports, err := process.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	servers := strings.ReplaceAll(strings.Join(endpoints(shared), ","), "http://", "")
	args := append([]string{subcommand, "start", "--endpoints", servers, "--listen-addr", address}, flags...)
	background(t, "etcd", args...)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{address}, DialTimeout: callTimeout, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestEtcdsGatewayForwardsToTheseMembers(t *testing.T) {
	client := through(t, "gateway")
	useAll(t, client, connect(t), "gateway/")
}

func TestEtcdsGrpcProxyForwardsToTheseMembers(t *testing.T) {
	client := through(t, "grpc-proxy")
	useAll(t, client, connect(t), "proxy/")
	// The proxy joins watchers of one range into one of the server.
	const watchers = 20
	first := put(t, client, "proxy/joined", "0")
	var channels []clientv3.WatchChan
	for range watchers {
		channels = append(channels, client.Watch(deadline(t), "proxy/joined", clientv3.WithRev(first)))
	}
	put(t, client, "proxy/joined", "1")
	for _, channel := range channels {
		if got := watched(t, channel, 2); got != "PUT proxy/joined=0, PUT proxy/joined=1" {
			t.Error(got)
		}
	}
}

func TestEtcdsGrpcProxyKeepsANamespace(t *testing.T) {
	client := through(t, "grpc-proxy", "--namespace", "space/")
	useAll(t, client, connect(t), "in/")
	put(t, client, "k", "1")
	answer, err := connect(t).Get(deadline(t), "space/k")
	if err != nil || pairs("", answer.Kvs) != "space/k=1" {
		t.Fatalf("%v %v", answer, err)
	}
}

// watched returns the events of a watch until there are so many.
func watched(t *testing.T, channel clientv3.WatchChan, count int) string {
	t.Helper()
	var all []string
	for len(all) < count {
		answer, isOpen := <-channel
		if !isOpen || answer.Err() != nil {
			t.Fatalf("the watch ended after %v: %v", all, answer.Err())
		}
		for _, event := range answer.Events {
			all = append(all, fmt.Sprintf("%s %s=%s", event.Type, event.Kv.Key, event.Kv.Value))
		}
	}
	return strings.Join(all, ", ")
}

// useAll makes calls of every kind below a prefix. The direct client sees what they did.
func useAll(t *testing.T, client, direct *clientv3.Client, prefix string) {
	t.Helper()
	first := put(t, client, prefix+"a", "1", prefix+"a", "2")
	answer, err := client.Txn(deadline(t)).If(clientv3.Compare(clientv3.Version(prefix+"a"), "=", 2)).
		Then(clientv3.OpPut(prefix+"b", "1"), clientv3.OpDelete(prefix+"a")).Commit()
	if err != nil || !answer.Succeeded {
		t.Fatalf("%v %v", answer, err)
	}
	want := fmt.Sprintf("PUT %[1]sa=2, PUT %[1]sb=1, DELETE %[1]sa=", prefix)
	if got := watched(t, client.Watch(deadline(t), prefix, clientv3.WithPrefix(), clientv3.WithRev(first)), 3); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, options := range [][]clientv3.OpOption{nil, {clientv3.WithSerializable()}, {clientv3.WithRev(first)}} {
		read, err := client.Get(deadline(t), prefix, append(options, clientv3.WithPrefix())...)
		if err != nil || len(read.Kvs) != 1 {
			t.Errorf("%v %v", read, err)
		}
	}
	lease := grant(t, client, 2)
	putWith(t, client, prefix+"leased", lease)
	alive, cancel := context.WithCancel(deadline(t))
	renewals, err := client.KeepAlive(alive, lease)
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < 3*time.Second; {
		if renewal, isOpen := <-renewals; !isOpen || renewal.TTL != 2 {
			t.Fatalf("renewed: %v after %v", renewal, time.Since(began))
		}
	}
	if n := count(t, client, prefix+"leased"); n != 1 {
		t.Error("the key of a lease that is kept alive is gone")
	}
	cancel()
	for began := time.Now(); count(t, direct, prefix+"leased")+count(t, direct, "space/"+prefix+"leased") != 0; {
		if time.Since(began) > recoveryTimeout {
			t.Fatal("the key of an expired lease is still there")
		}
		time.Sleep(20 * time.Millisecond)
	}
	session, err := concurrency.NewSession(client)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, prefix+"lock")
	if err := mutex.Lock(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := mutex.Unlock(deadline(t)); err != nil {
		t.Fatal(err)
	}
}

// A mirror copies what is there and follows. It is made from these members to etcd, and back into other keys.
func TestEtcdctlMirrorsBothWays(t *testing.T) {
	etcd, err := process.Start(built(t, "etcd"), t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(etcd) })
	ours, theirs := connect(t), connect(t, etcd...)
	const source, there, back = "mirror/source/", "mirror/there/", "mirror/back/"
	for i := range 150 {
		put(t, ours, fmt.Sprintf("%s%03d", source, i), "before")
	}
	address := func(member *process.Member) string { return strings.TrimPrefix(member.ClientURL, "http://") }
	mirror := func(from, to *process.Member, prefix, target string) {
		background(t, "etcdctl", "--endpoints", address(from), "make-mirror", "--prefix", prefix,
			"--dest-prefix", target, address(to))
	}
	mirror(shared[0], etcd[0], source, there)
	mirror(etcd[0], shared[1], there, back)
	settled := func(what string, client *clientv3.Client, prefix string) {
		t.Helper()
		want := pairs(source, read(t, ours, source))
		for began := time.Now(); pairs(prefix, read(t, client, prefix)) != want; time.Sleep(20 * time.Millisecond) {
			if time.Since(began) > recoveryTimeout {
				t.Fatalf("%s: %s, want %s", what, pairs(prefix, read(t, client, prefix)), want)
			}
		}
	}
	settled("from these members, what was there", theirs, there)
	settled("to these members, what was there", ours, back)
	for i := range 50 {
		put(t, ours, fmt.Sprintf("%s%03d", source, i*7%200), fmt.Sprint("after ", i))
	}
	if _, err := ours.Txn(deadline(t)).Then(clientv3.OpPut(source+"one", "1"), clientv3.OpPut(source+"two", "2"),
		clientv3.OpDelete(source+"010", clientv3.WithRange(source+"020"))).Commit(); err != nil {
		t.Fatal(err)
	}
	settled("from these members, what changed", theirs, there)
	settled("to these members, what changed", ours, back)
}

func read(t *testing.T, client *clientv3.Client, prefix string) []*mvccpb.KeyValue {
	t.Helper()
	answer, err := client.Get(deadline(t), prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	return answer.Kvs
}
