package main

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"kv-server/interop/internal/measure"
	"kv-server/interop/internal/process"
)

const (
	// etcd revokes at most 1000 in a second.
	expiryPatience = 5 * time.Minute
	// Of leases at rest, in seconds.
	restTTL = 36_000
	// Leases whose remaining time is compared after leaders have changed.
	compared      = 1000
	leaderChanges = 3
	restTime      = 20 * time.Second
)

// granted is a lease and the times between which it ends if it is not renewed.
type granted struct {
	id           clientv3.LeaseID
	first, last  time.Time
	goneAt       time.Time
	keyIsWritten bool
}

// grantAll grants leases that end before `end`, and at most a second before it, each with a key.
func grantAll(all []*clientv3.Client, count int, prefix string, end time.Time) ([]granted, error) {
	leases := make([]granted, count)
	return leases, many(all, count, func(client *clientv3.Client, number int) error {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		sent := time.Now()
		ttl := int64(end.Sub(sent).Seconds())
		lease, err := client.Grant(ctx, ttl)
		if err != nil {
			return err
		}
		if lease.TTL != ttl {
			return fmt.Errorf("a TTL of %d s was granted instead of %d", lease.TTL, ttl)
		}
		length := time.Duration(ttl) * time.Second
		leases[number] = granted{id: lease.ID, first: sent.Add(length), last: time.Now().Add(length)}
		_, err = client.Put(ctx, fmt.Sprintf("%s%08d", prefix, number), "", clientv3.WithLease(lease.ID))
		leases[number].keyIsWritten = err == nil
		return err
	})
}

// gone notes when the key of each lease was seen to be deleted. It returns when all are, or after too long a time.
func gone(client *clientv3.Client, leases []granted, prefix string, end time.Time) (<-chan int, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Until(end)+expiryPatience)
	watch := client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithFilterPut())
	done := make(chan int, 1)
	go func() {
		missing := len(leases)
		for response := range watch {
			at := time.Now()
			for _, event := range response.Events {
				var number int
				if _, err := fmt.Sscanf(string(event.Kv.Key[len(prefix):]), "%d", &number); err == nil {
					leases[number].goneAt = at
					missing--
				}
			}
			if missing == 0 {
				break
			}
		}
		done <- missing
	}()
	return done, cancel
}

// expiries grants leases that end together, kills the leader half-way if that is wanted, and says when keys went.
func expiries(members []*process.Member, count, rate int, untilExpiry time.Duration, kills bool) ([]figure, error) {
	all, err := clients(members, connections)
	defer closeAll(all)
	if err != nil {
		return nil, err
	}
	prefix, called := "l", "all members up"
	if kills {
		prefix, called = "k", "leader killed"
	}
	before, _ := putAt(all, "p", rate, 10*rate, nil)
	end := time.Now().Add(untilExpiry)
	leases, err := grantAll(all, count, prefix, end)
	if err != nil {
		return nil, err
	}
	if left := time.Until(end); left < untilExpiry/4 {
		return nil, fmt.Errorf("%d leases took too long to grant: %v are left", count, left)
	}
	done, cancel := gone(all[0], leases, prefix, end)
	defer cancel()
	if kills {
		leads, _, err := leaderOf(members)
		if err != nil {
			return nil, err
		}
		time.Sleep(time.Until(end) / 2)
		leads.Kill()
		defer func() { _ = leads.Start() }()
	}
	time.Sleep(time.Until(end) - 2*time.Second)
	stop := make(chan struct{})
	missing := make(chan int, 1)
	go func() {
		missing <- <-done
		close(stop)
	}()
	during, failed := putAt(all, "p", rate, int(expiryPatience.Seconds())*rate, stop)
	lost := <-missing
	late, early, worst := &measure.Latencies{}, 0, time.Duration(0)
	for _, lease := range leases {
		if lease.goneAt.IsZero() {
			continue
		}
		late.Add(lease.goneAt.Sub(lease.last))
		if by := lease.first.Sub(lease.goneAt); by > 0 {
			early, worst = early+1, max(worst, by)
		}
	}
	return []figure{
		{called + ": keys gone after their TTL", fmt.Sprintf("p50 %.1f, all %.1f s", late.Quantile(0.5).Seconds(), late.Quantile(1).Seconds())},
		{called + ": keys gone early, not at all", fmt.Sprintf("%d (by up to %v), %d", early, worst, lost)},
		{called + ": puts before", before.String()},
		{called + ": puts meanwhile", fmt.Sprintf("%s, %d failed", during, failed)},
		{called + ": p99 of puts, meanwhile to before", ratio(during, before)},
	}, nil
}

func expiry(members []*process.Member, sizes sizes) ([]figure, error) {
	rate := sizes.rate / 4
	figures, err := expiries(members, sizes.leases, rate, sizes.untilExpiry, false)
	if err != nil {
		return figures, err
	}
	killed, err := expiries(members, sizes.leases, rate, sizes.untilExpiry, true)
	return append(figures, killed...), err
}

func leader(members []*process.Member, sizes sizes) ([]figure, error) {
	all, err := clients(members, connections)
	defer closeAll(all)
	if err != nil {
		return nil, err
	}
	ids := make([]clientv3.LeaseID, sizes.atRest)
	grantedAt := make([]time.Time, sizes.atRest)
	if err := many(all, sizes.atRest, func(client *clientv3.Client, number int) error {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		lease, err := client.Grant(ctx, restTTL)
		if err == nil {
			ids[number], grantedAt[number] = lease.ID, time.Now()
		}
		return err
	}); err != nil {
		return nil, err
	}
	leads, others, err := leaderOf(members)
	if err != nil {
		return nil, err
	}
	time.Sleep(restTime / 4)
	before, _, err := leads.Usage()
	if err != nil {
		return nil, err
	}
	time.Sleep(restTime)
	after, memory, err := leads.Usage()
	if err != nil {
		return nil, err
	}
	figures := []figure{
		{"processor time of the leader at rest", fmt.Sprintf("%.1f %% of a core", 100*(after-before).Seconds()/restTime.Seconds())},
		{"its resident memory", measure.Mebibytes(memory)},
	}
	for range leaderChanges {
		if err := moveLeader(members); err != nil {
			return figures, err
		}
	}
	lost, err := lostTime(all[0], ids[:min(compared, len(ids))], grantedAt)
	if err != nil {
		return figures, err
	}
	figures = append(figures, figure{"TTLs after three leader changes differ by", lost})
	if leads, others, err = leaderOf(members); err != nil {
		return figures, err
	}
	leads.Kill()
	_, _, err = leaderOf(others)
	if err != nil {
		return figures, err
	}
	elected := time.Now()
	rest, err := connect(others)
	if err != nil {
		return figures, err
	}
	defer rest.Close()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		_, err := rest.KeepAliveOnce(ctx, ids[len(ids)-1])
		cancel()
		if err == nil {
			break
		}
		if time.Since(elected) > callTimeout {
			return figures, err
		}
	}
	return append(figures, figure{"from the election to the first renewal", measure.Milliseconds(time.Since(elected)) + " ms"}), nil
}

// moveLeader hands leadership to another member, and returns when that one leads.
func moveLeader(members []*process.Member) error {
	leads, others, err := leaderOf(members)
	if err != nil {
		return err
	}
	client, err := connect([]*process.Member{leads})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	to, err := client.Status(ctx, others[0].ClientURL)
	if err != nil {
		return err
	}
	if _, err := client.MoveLeader(ctx, to.Header.MemberId); err != nil {
		return err
	}
	_, _, err = leaderOf(members)
	return err
}

// lostTime compares the remaining time of leases with what is left of what was granted.
func lostTime(client *clientv3.Client, ids []clientv3.LeaseID, grantedAt []time.Time) (string, error) {
	least, most := time.Duration(0), time.Duration(0)
	for number, id := range ids {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		answer, err := client.TimeToLive(ctx, id)
		cancel()
		if err != nil {
			return "", err
		}
		left := restTTL*time.Second - time.Since(grantedAt[number])
		by := time.Duration(answer.TTL)*time.Second - left
		least, most = min(least, by), max(most, by)
	}
	return fmt.Sprintf("%.1f to %.1f s", least.Seconds(), most.Seconds()), nil
}
