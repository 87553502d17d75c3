package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"kv-server/interop/internal/process"
)

const (
	writers = 128
	// A write that has no answer by then is left; it may have happened.
	writeTimeout = 5 * time.Second
	memberDown   = 3 * time.Second
)

// disturb writes at the rate and kills the archiver and members, and returns the newest revision after it.
func disturb(
	ctx context.Context, o options, members []*process.Member, archiver *archiver, client *clientv3.Client,
) (int64, error) {
	loaded, cancel := context.WithTimeout(ctx, time.Duration(o.seconds)*time.Second)
	defer cancel()
	var all sync.WaitGroup
	var done, failed atomic.Int64
	due := make(chan struct{}, o.rate)
	all.Go(func() { pace(loaded, o.rate, due) })
	for number := range writers {
		random := rand.New(rand.NewPCG(o.seed, 1000+uint64(number)))
		all.Go(func() {
			for range due {
				if write(ctx, client, random, o.keys) == nil {
					done.Add(1)
				} else {
					failed.Add(1)
				}
			}
		})
	}
	killed, err := killAll(loaded, o, members, archiver)
	cancel()
	all.Wait()
	if err != nil {
		return 0, err
	}
	fmt.Printf("%d writes in %d s, %d without an answer; members were killed %d times\n",
		done.Load(), o.seconds, failed.Load(), killed)
	// A write without an answer may still happen after this one. What is after it is not compared.
	answer, err := client.Put(ctx, "last", "1")
	if err != nil {
		return 0, err
	}
	return answer.Header.Revision, nil
}

// pace says when a write is due. What the writers cannot take in a second is left out.
func pace(ctx context.Context, rate int, due chan<- struct{}) {
	defer close(due)
	began, sent := time.Now(), 0
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		for wanted := int(time.Since(began).Seconds() * float64(rate)); sent < wanted; sent++ {
			select {
			case due <- struct{}{}:
			default:
			}
		}
	}
}

// write is a put, one time in twenty a deletion of a key, one in twenty a transaction of two puts.
func write(ctx context.Context, client *clientv3.Client, random *rand.Rand, keys int) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	key := func() string { return fmt.Sprintf("key%08d", random.IntN(keys)) }
	value := fmt.Sprintf("%016x", random.Uint64()) + strings.Repeat("v", random.IntN(240))
	var err error
	switch random.IntN(20) {
	case 0:
		_, err = client.Delete(ctx, key())
	case 1:
		one, two := clientv3.OpPut(key(), value), clientv3.OpPut("two"+key(), value)
		_, err = client.Txn(ctx).Then(one, two).Commit()
	default:
		_, err = client.Put(ctx, key(), value)
	}
	return err
}

// killAll kills until the context ends, and returns how often a member was killed.
func killAll(ctx context.Context, o options, members []*process.Member, archiver *archiver) (int, error) {
	random := rand.New(rand.NewPCG(o.seed, 1))
	// Between half the mean and one and a half of it.
	after := func(mean time.Duration) time.Time {
		return time.Now().Add(mean/2 + time.Duration(random.Int64N(int64(mean))))
	}
	killed := 0
	nextArchiver, nextMember := after(o.archiverKilledEvery), after(o.downEvery)
	ticks := time.NewTicker(100 * time.Millisecond)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return killed, nil
		case <-ticks.C:
		}
		archiver.sample()
		if err := archiver.alive(); err != nil {
			return killed, err
		}
		if time.Now().After(nextArchiver) {
			archiver.kill()
			if err := archiver.start(); err != nil {
				return killed, err
			}
			nextArchiver = after(o.archiverKilledEvery)
		}
		if time.Now().After(nextMember) {
			member := members[random.IntN(len(members))]
			member.Kill()
			time.Sleep(memberDown)
			if err := member.Start(); err != nil {
				return killed, err
			}
			killed++
			nextMember = after(o.downEvery)
		}
	}
}
