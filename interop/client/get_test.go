package client

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// pairs writes key-values as `key=value` without the prefix of the test.
func pairs(prefix string, kvs []*mvccpb.KeyValue) string {
	var words []string
	for _, kv := range kvs {
		words = append(words, fmt.Sprintf("%s=%s", strings.TrimPrefix(string(kv.Key), prefix), kv.Value))
	}
	return strings.Join(words, " ")
}

func TestGetTakesEveryOption(t *testing.T) {
	client := connect(t)
	const p = "options/"
	first := put(t, client, p+"a", "z")
	put(t, client, p+"b", "y", p+"c", "x", p+"a", "w", p+"d", "v")
	prefix := clientv3.WithPrefix()
	for name, check := range map[string]struct {
		key     string
		options []clientv3.OpOption
		want    string
		count   int64
	}{
		"one key":      {p + "a", nil, "a=w", 1},
		"missing key":  {p + "nothing", nil, "", 0},
		"prefix":       {p, []clientv3.OpOption{prefix}, "a=w b=y c=x d=v", 4},
		"range":        {p + "b", []clientv3.OpOption{clientv3.WithRange(p + "d")}, "b=y c=x", 2},
		"limit":        {p, []clientv3.OpOption{prefix, clientv3.WithLimit(2)}, "a=w b=y", 4},
		"past":         {p, []clientv3.OpOption{prefix, clientv3.WithRev(first + 2)}, "a=z b=y c=x", 3},
		"descending":   {p, []clientv3.OpOption{prefix, clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend)}, "d=v c=x b=y a=w", 4},
		"by value":     {p, []clientv3.OpOption{prefix, clientv3.WithSort(clientv3.SortByValue, clientv3.SortAscend)}, "d=v a=w c=x b=y", 4},
		"by change":    {p, []clientv3.OpOption{prefix, clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend)}, "d=v a=w c=x b=y", 4},
		"by creation":  {p, []clientv3.OpOption{prefix, clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend)}, "d=v c=x b=y a=w", 4},
		"top version":  {p, []clientv3.OpOption{prefix, clientv3.WithSort(clientv3.SortByVersion, clientv3.SortDescend), clientv3.WithLimit(1)}, "a=w", 4},
		"serializable": {p, []clientv3.OpOption{prefix, clientv3.WithSerializable(), clientv3.WithRev(first)}, "a=z", 1},
		"keys only":    {p, []clientv3.OpOption{prefix, clientv3.WithKeysOnly()}, "a= b= c= d=", 4},
		"count only":   {p, []clientv3.OpOption{prefix, clientv3.WithCountOnly()}, "", 4},
		"min change":   {p, []clientv3.OpOption{prefix, clientv3.WithMinModRev(first + 3)}, "a=w d=v", 4},
		"max change":   {p, []clientv3.OpOption{prefix, clientv3.WithMaxModRev(first + 2)}, "b=y c=x", 4},
		"min creation": {p, []clientv3.OpOption{prefix, clientv3.WithMinCreateRev(first + 2)}, "c=x d=v", 4},
		"max creation": {p, []clientv3.OpOption{prefix, clientv3.WithMaxCreateRev(first + 1)}, "a=w b=y", 4},
		"first key":    {p, clientv3.WithFirstKey(), "a=w", 4},
		"last key":     {p, clientv3.WithLastKey(), "d=v", 4},
		"first rev":    {p, clientv3.WithFirstRev(), "b=y", 4},
		"last rev":     {p, clientv3.WithLastRev(), "d=v", 4},
		"first create": {p, clientv3.WithFirstCreate(), "a=w", 4},
		"last create":  {p, clientv3.WithLastCreate(), "d=v", 4},
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := client.Get(deadline(t), check.key, check.options...)
			if err != nil {
				t.Fatal(err)
			}
			if got := pairs(p, answer.Kvs); got != check.want || answer.Count != check.count {
				t.Errorf("got %q of %d, want %q of %d", got, answer.Count, check.want, check.count)
			}
		})
	}
}

func TestAStreamBringsWhatAGetBrings(t *testing.T) {
	client := connect(t)
	const p, keys = "stream/", 1000
	for n := 0; n < keys; n += 100 {
		var ops []clientv3.Op
		for i := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s%04d", p, n+i), strings.Repeat("v", n+i)))
		}
		if _, err := client.Txn(deadline(t)).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	for _, options := range [][]clientv3.OpOption{
		{clientv3.WithPrefix()},
		{clientv3.WithPrefix(), clientv3.WithLimit(333)},
		{clientv3.WithPrefix(), clientv3.WithKeysOnly()},
		{clientv3.WithPrefix(), clientv3.WithCountOnly()},
	} {
		stream, err := client.GetStream(deadline(t), p, options...)
		if err != nil {
			t.Fatal(err)
		}
		streamed, err := clientv3.GetStreamToGetResponse(stream)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := client.Get(deadline(t), p, options...)
		if err != nil {
			t.Fatal(err)
		}
		if pairs(p, streamed.Kvs) != pairs(p, whole.Kvs) || streamed.Count != whole.Count || streamed.More != whole.More {
			t.Errorf("streamed %d of %d, got %d of %d", len(streamed.Kvs), streamed.Count, len(whole.Kvs), whole.Count)
		}
	}
}

func TestEveryMemberShowsAWriteAtOnce(t *testing.T) {
	for n := range 20 {
		writer, reader := connect(t, shared[n%clusterSize]), connect(t, shared[(n+1)%clusterSize])
		value := fmt.Sprint(n)
		revision := put(t, writer, "anywhere", value)
		answer, err := reader.Get(deadline(t), "anywhere")
		if err != nil {
			t.Fatal(err)
		}
		if string(answer.Kvs[0].Value) != value || answer.Header.Revision < revision {
			t.Fatalf("wrote %s at %d, read %v", value, revision, answer)
		}
	}
}

func TestCompactedAndFutureRevisionsAreTheErrorsThatTheClientKnows(t *testing.T) {
	client := connect(t)
	old := put(t, client, "compacted", "1")
	newest := put(t, client, "compacted", "2", "compacted", "3")
	if _, err := client.Compact(deadline(t), newest, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	for name, check := range map[string]struct {
		err  error
		want error
	}{
		"read below":       {get(t, client, old), rpctypes.ErrCompacted},
		"read at":          {get(t, client, newest), nil},
		"read above":       {get(t, client, newest+1000000), rpctypes.ErrFutureRev},
		"compact again":    {compact(t, client, newest), rpctypes.ErrCompacted},
		"compact too far":  {compact(t, client, newest+1000000), rpctypes.ErrFutureRev},
		"hash of the past": {hash(t, client, old), rpctypes.ErrCompacted},
	} {
		if !errors.Is(check.err, check.want) {
			t.Errorf("%s: %v, want %v", name, check.err, check.want)
		}
	}
}

func get(t *testing.T, client *clientv3.Client, revision int64) error {
	_, err := client.Get(deadline(t), "compacted", clientv3.WithRev(revision))
	return err
}

func compact(t *testing.T, client *clientv3.Client, revision int64) error {
	_, err := client.Compact(deadline(t), revision)
	return err
}

func hash(t *testing.T, client *clientv3.Client, revision int64) error {
	_, err := client.HashKV(deadline(t), client.Endpoints()[0], revision)
	return err
}
