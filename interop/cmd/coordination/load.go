package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"kv-server/interop/internal/measure"
	"kv-server/interop/internal/process"
)

const (
	callTimeout = 30 * time.Second
	// Callers of an open loop: as many puts may be under way before one is sent late.
	callers     = 500
	connections = 10
	valueBytes  = 1024
)

// connect opens a client to these members. Calls of a client share one connection to each.
func connect(members []*process.Member) (*clientv3.Client, error) {
	var urls []string
	for _, member := range members {
		urls = append(urls, member.ClientURL)
	}
	return clientv3.New(clientv3.Config{Endpoints: urls, DialTimeout: callTimeout, Logger: zap.NewNop()})
}

// clients opens clients with a connection each.
func clients(members []*process.Member, count int) ([]*clientv3.Client, error) {
	var all []*clientv3.Client
	for range count {
		client, err := connect(members)
		if err != nil {
			return all, err
		}
		all = append(all, client)
	}
	return all, nil
}

func closeAll(all []*clientv3.Client) {
	for _, client := range all {
		_ = client.Close()
	}
}

// putAt sends puts at a rate until they are done or stop is closed. Each value begins with the time at which its put
// was due. Failed puts count with the time they took.
func putAt(all []*clientv3.Client, key string, rate, count int, stop <-chan struct{}) (*measure.Latencies, int) {
	took, failed := &measure.Latencies{}, 0
	type due struct {
		number int
		at     time.Time
	}
	work := make(chan due, count)
	var running sync.WaitGroup
	var mutex sync.Mutex
	for caller := range callers {
		client := all[caller%len(all)]
		running.Go(func() {
			value := make([]byte, valueBytes)
			for put := range work {
				binary.BigEndian.PutUint64(value, uint64(put.at.UnixNano()))
				ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
				_, err := client.Put(ctx, fmt.Sprintf("%s%08d", key, put.number%10_000), string(value))
				cancel()
				took.Add(time.Since(put.at))
				if err != nil {
					mutex.Lock()
					failed++
					mutex.Unlock()
				}
			}
		})
	}
	began, isStopped := time.Now(), false
	for number := 0; number < count && !isStopped; number++ {
		at := began.Add(time.Duration(number) * time.Second / time.Duration(rate))
		select {
		case <-stop:
			isStopped = true
		case <-time.After(time.Until(at)):
			work <- due{number, at}
		}
	}
	close(work)
	running.Wait()
	return took, failed
}

// leaderOf returns the member that leads and the others.
func leaderOf(members []*process.Member) (*process.Member, []*process.Member, error) {
	client, err := connect(members)
	if err != nil {
		return nil, nil, err
	}
	defer client.Close()
	deadline := time.Now().Add(callTimeout)
	for time.Now().Before(deadline) {
		for i, member := range members {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			status, err := client.Status(ctx, member.ClientURL)
			cancel()
			if err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
				others := slices.Concat(members[:i], members[i+1:])
				return member, others, nil
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, nil, fmt.Errorf("no member leads after %v", callTimeout)
}
