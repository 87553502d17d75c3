package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"kv-server/interop/internal/measure"
	"kv-server/interop/internal/process"
)

const (
	watchersOfStream = 100
	renewers         = 1000
	callersOfLink    = 10
	leaseTTL         = 600
	// Until freed memory has gone back and collectors have run.
	settling = 10 * time.Second
)

// idle opens watchers of keys that are not written, and says what memory they take.
func idle(members []*process.Member, sizes sizes) ([]figure, error) {
	time.Sleep(settling)
	_, before, err := usage(members)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	streams := max(1, sizes.idle/watchersOfStream)
	var link *grpc.ClientConn
	for number := range streams {
		if number%callersOfLink == 0 {
			if link, err = dial(members[number/callersOfLink%len(members)]); err != nil {
				return nil, err
			}
			defer link.Close()
		}
		if err := openIdle(ctx, link, number); err != nil {
			return nil, err
		}
	}
	time.Sleep(settling)
	cpuBefore, after, err := usage(members)
	if err != nil {
		return nil, err
	}
	time.Sleep(settling)
	cpuAfter, _, err := usage(members)
	if err != nil {
		return nil, err
	}
	each := float64(after-before) / float64(streams*watchersOfStream)
	return []figure{
		{"watchers, on streams", fmt.Sprintf("%d on %d", streams*watchersOfStream, streams)},
		{"resident memory before, of all members", measure.Mebibytes(before)},
		{"resident memory with them", measure.Mebibytes(after)},
		{"for each watcher, its share of stream and connection included", fmt.Sprintf("%.0f B", each)},
		{"processor time at rest, of all members", fmt.Sprintf("%.2f %% of a core", 100*(cpuAfter-cpuBefore).Seconds()/settling.Seconds())},
	}, nil
}

// openIdle opens a stream with its watchers, and returns when all are created.
func openIdle(ctx context.Context, link *grpc.ClientConn, number int) error {
	opened, err := etcdserverpb.NewWatchClient(link).Watch(ctx)
	if err != nil {
		return err
	}
	for watcher := range watchersOfStream {
		key := fmt.Sprintf("idle/%08d", number*watchersOfStream+watcher)
		create := &etcdserverpb.WatchCreateRequest{Key: []byte(key)}
		request := &etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: create}}
		if err := opened.Send(request); err != nil {
			return err
		}
	}
	for range watchersOfStream {
		if response, err := opened.Recv(); err != nil || !response.Created || response.Canceled {
			return fmt.Errorf("watcher of stream %d: %v, %v", number, response, err)
		}
	}
	return nil
}

// renewals renews leases by the official client, a stream for each renewal, then a stream for each caller.
func renewals(members []*process.Member, sizes sizes) ([]figure, error) {
	all, err := clients(members, renewers/callersOfLink)
	defer closeAll(all)
	if err != nil {
		return nil, err
	}
	ids := make([]clientv3.LeaseID, renewers)
	if err := many(all, renewers, func(client *clientv3.Client, number int) error {
		lease, err := client.Grant(context.Background(), leaseTTL)
		if err == nil {
			ids[number] = lease.ID
		}
		return err
	}); err != nil {
		return nil, err
	}
	once := func(caller int) (func() error, error) {
		client := all[caller%len(all)]
		return func() error {
			_, err := client.KeepAliveOnce(context.Background(), ids[caller])
			return err
		}, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	figures, err := renewed(members, sizes.renewals, "each on a new stream", once)
	if err != nil {
		return figures, err
	}
	onStream := func(caller int) (func() error, error) {
		client := all[caller%len(all)]
		stream, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(ctx)
		return func() error {
			if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(ids[caller])}); err != nil {
				return err
			}
			answer, err := stream.Recv()
			if err == nil && answer.TTL != leaseTTL {
				err = fmt.Errorf("a TTL of %d s", answer.TTL)
			}
			return err
		}, err
	}
	more, err := renewed(members, sizes.renewals, "a stream for each caller", onStream)
	return append(figures, more...), err
}

// renewed measures renewals, one after the other by each caller.
func renewed(members []*process.Member, count int, how string, open func(caller int) (func() error, error)) ([]figure, error) {
	took := &measure.Latencies{}
	renews := make([]func() error, renewers)
	for caller := range renews {
		renew, err := open(caller)
		if err != nil {
			return nil, err
		}
		renews[caller] = renew
		if err := renew(); err != nil {
			return nil, err
		}
	}
	before, _, err := usage(members)
	if err != nil {
		return nil, err
	}
	began, failed := time.Now(), make(chan error, renewers)
	var running sync.WaitGroup
	for _, renew := range renews {
		running.Go(func() {
			for range count / renewers {
				sent := time.Now()
				if err := renew(); err != nil {
					failed <- err
					return
				}
				took.Add(time.Since(sent))
			}
		})
	}
	running.Wait()
	elapsed := time.Since(began)
	close(failed)
	if err := <-failed; err != nil {
		return nil, err
	}
	after, _, err := usage(members)
	if err != nil {
		return nil, err
	}
	each := float64((after - before).Microseconds()) / float64(took.Count())
	return []figure{
		{how + ": processor time of all members, each", fmt.Sprintf("%.1f µs", each)},
		{how + ": per second", fmt.Sprintf("%.0f", float64(took.Count())/elapsed.Seconds())},
		{how + ": latency", took.String()},
	}, nil
}
