package client

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
)

func TestPutAndDeleteReturnWhatWasThere(t *testing.T) {
	client := connect(t)
	const key = "previous"
	fresh, err := client.Put(deadline(t), key, "1", clientv3.WithPrevKV())
	if err != nil || fresh.PrevKv != nil {
		t.Fatalf("%v %v", fresh, err)
	}
	again, err := client.Put(deadline(t), key, "2", clientv3.WithPrevKV())
	if err != nil || string(again.PrevKv.Value) != "1" {
		t.Fatalf("%v %v", again, err)
	}
	if _, err := client.Put(deadline(t), key, "", clientv3.WithIgnoreValue()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(deadline(t), key, "3", clientv3.WithIgnoreLease()); err != nil {
		t.Fatal(err)
	}
	gone, err := client.Delete(deadline(t), key, clientv3.WithPrevKV())
	if err != nil || gone.Deleted != 1 || gone.PrevKvs[0].Version != 4 || string(gone.PrevKvs[0].Value) != "3" {
		t.Fatalf("%v %v", gone, err)
	}
	none, err := client.Delete(deadline(t), key)
	if err != nil || none.Deleted != 0 || none.Header.Revision != gone.Header.Revision {
		t.Fatalf("%v %v", none, err)
	}
}

func TestDeleteTakesARange(t *testing.T) {
	client := connect(t)
	put(t, client, "gone/a", "1", "gone/b", "2", "gone/c", "3")
	answer, err := client.Delete(deadline(t), "gone/", clientv3.WithPrefix(), clientv3.WithPrevKV())
	if err != nil || answer.Deleted != 3 || pairs("gone/", answer.PrevKvs) != "a=1 b=2 c=3" {
		t.Fatalf("%v %v", answer, err)
	}
}

func TestRefusalsAreTheErrorsThatTheClientKnows(t *testing.T) {
	client := connect(t)
	puts := func(n int, key string) (ops []clientv3.Op) {
		for i := range n {
			ops = append(ops, clientv3.OpPut(strings.ReplaceAll(key, "#", fmt.Sprint(i)), "v"))
		}
		return ops
	}
	do := func(op clientv3.Op) error {
		_, err := client.Do(deadline(t), op)
		return err
	}
	for name, check := range map[string]struct {
		op   clientv3.Op
		want error
	}{
		"empty key":      {clientv3.OpPut("", "v"), rpctypes.ErrEmptyKey},
		"value provided": {clientv3.OpPut("a", "v", clientv3.WithIgnoreValue()), rpctypes.ErrValueProvided},
		"lease provided": {clientv3.OpPut("a", "v", clientv3.WithLease(1), clientv3.WithIgnoreLease()), rpctypes.ErrLeaseProvided},
		"lease unknown":  {clientv3.OpPut("a", "v", clientv3.WithLease(12345)), rpctypes.ErrLeaseNotFound},
		"key not found":  {clientv3.OpPut("refused/none", "", clientv3.WithIgnoreValue()), rpctypes.ErrKeyNotFound},
		"too large":      {clientv3.OpPut("a", strings.Repeat("v", 1600000)), rpctypes.ErrRequestTooLarge},
		"too many":       {clientv3.OpTxn(nil, puts(129, "many/#"), nil), rpctypes.ErrTooManyOps},
		"duplicate":      {clientv3.OpTxn(nil, puts(2, "same"), nil), rpctypes.ErrDuplicateKey},
	} {
		if err := do(check.op); !errors.Is(err, check.want) {
			t.Errorf("%s: %v, want %v", name, err, check.want)
		}
	}
}

func TestATransactionTakesOneBranch(t *testing.T) {
	client := connect(t)
	put(t, client, "txn/a", "1", "txn/b", "1")
	for name, check := range map[string]struct {
		compare clientv3.Cmp
		want    bool
	}{
		"value":          {clientv3.Compare(clientv3.Value("txn/a"), "=", "1"), true},
		"version":        {clientv3.Compare(clientv3.Version("txn/a"), ">", 0), true},
		"creation":       {clientv3.Compare(clientv3.CreateRevision("txn/none"), "=", 0), true},
		"change":         {clientv3.Compare(clientv3.ModRevision("txn/a"), "<", 1), false},
		"lease":          {clientv3.Compare(clientv3.LeaseValue("txn/a"), "!=", 0), false},
		"whole prefix":   {clientv3.Compare(clientv3.Value("txn/"), "=", "1").WithPrefix(), true},
		"part of range":  {clientv3.Compare(clientv3.Version("txn/a"), "=", 2).WithRange("txn/c"), false},
		"missing values": {clientv3.Compare(clientv3.Value("txn/none"), "!=", "1"), false},
	} {
		answer, err := client.Txn(deadline(t)).If(check.compare).Then(clientv3.OpGet("txn/a")).Else(clientv3.OpGet("txn/b")).Commit()
		if err != nil || answer.Succeeded != check.want {
			t.Errorf("%s: %v %v", name, answer, err)
		}
	}
}

func TestTransactionsNest(t *testing.T) {
	client := connect(t)
	inner := clientv3.OpTxn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.Version("nest/a"), "=", 0)},
		[]clientv3.Op{clientv3.OpPut("nest/b", "then")}, []clientv3.Op{clientv3.OpPut("nest/b", "else")})
	answer, err := client.Txn(deadline(t)).Then(clientv3.OpPut("nest/a", "1"), inner, clientv3.OpGet("nest/", clientv3.WithPrefix())).Commit()
	if err != nil {
		t.Fatal(err)
	}
	// The inner compare judged the state before the outer put.
	if got := pairs("nest/", answer.Responses[2].GetResponseRange().Kvs); got != "a=1 b=then" {
		t.Error(got)
	}
}

// Ten accounts, many transfers at once through optimistic transactions: money is neither made nor lost.
func TestConcurrentTransfersKeepTheSum(t *testing.T) {
	const accounts, workers, transfers = 10, 6, 15
	setup := connect(t)
	name := func(n int) string { return fmt.Sprintf("account/%d", n%accounts) }
	for n := range accounts {
		put(t, setup, name(n), "100")
	}
	var all sync.WaitGroup
	for worker := range workers {
		client := connect(t, shared[worker%clusterSize])
		all.Go(func() {
			for n := range transfers {
				from, to := name(worker+n), name(worker*3+n*7+1)
				if from == to {
					continue
				}
				_, err := concurrency.NewSTM(client, func(stm concurrency.STM) error {
					a, _ := strconv.Atoi(stm.Get(from))
					b, _ := strconv.Atoi(stm.Get(to))
					stm.Put(from, strconv.Itoa(a-n))
					stm.Put(to, strconv.Itoa(b+n))
					return nil
				}, concurrency.WithAbortContext(deadline(t)))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	answer, err := setup.Get(deadline(t), "account/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, kv := range answer.Kvs {
		balance, err := strconv.Atoi(string(kv.Value))
		if err != nil {
			t.Fatal(err)
		}
		sum += balance
	}
	if sum != 100*accounts {
		t.Errorf("%d in all", sum)
	}
}

// The calls that a Kubernetes API server makes.
func TestTheKubernetesInterfaceWorks(t *testing.T) {
	client, err := kubernetes.New(clientv3.Config{Endpoints: endpoints(shared), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const p = "registry/pods/"
	created, err := client.Kubernetes.OptimisticPut(deadline(t), p+"a", []byte("1"), 0, kubernetes.PutOptions{})
	if err != nil || !created.Succeeded {
		t.Fatalf("%+v %v", created, err)
	}
	lost, err := client.Kubernetes.OptimisticPut(deadline(t), p+"a", []byte("x"), 1, kubernetes.PutOptions{GetOnFailure: true})
	if err != nil || lost.Succeeded || string(lost.KV.Value) != "1" {
		t.Fatalf("%+v %v", lost, err)
	}
	updated, err := client.Kubernetes.OptimisticPut(deadline(t), p+"a", []byte("2"), created.Revision, kubernetes.PutOptions{})
	if err != nil || !updated.Succeeded {
		t.Fatalf("%+v %v", updated, err)
	}
	for n := range 5 {
		if _, err := client.Kubernetes.OptimisticPut(deadline(t), fmt.Sprintf("%sb%d", p, n), []byte("v"), 0, kubernetes.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	page, err := client.Kubernetes.List(deadline(t), p, kubernetes.ListOptions{Limit: 4})
	if err != nil || len(page.Kvs) != 4 || page.Count != 6 {
		t.Fatalf("%+v %v", page, err)
	}
	rest, err := client.Kubernetes.List(deadline(t), p, kubernetes.ListOptions{
		Limit: 4, Revision: page.Revision, Continue: string(page.Kvs[3].Key) + "\x00",
	})
	if err != nil || len(rest.Kvs) != 2 {
		t.Fatalf("%+v %v", rest, err)
	}
	removed, err := client.Kubernetes.OptimisticDelete(deadline(t), p+"a", updated.Revision, kubernetes.DeleteOptions{})
	if err != nil || !removed.Succeeded {
		t.Fatalf("%+v %v", removed, err)
	}
	if count, err := client.Kubernetes.Count(deadline(t), p, kubernetes.CountOptions{}); err != nil || count != 5 {
		t.Fatalf("%d %v", count, err)
	}
}
