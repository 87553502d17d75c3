// Command gozero publishes services and subscribes to them with the package discov of go-zero, as its documentation
// does, and prints what the subscribers see after each step.
//
// ENDPOINTS are host:port. CA, CERT and KEY are files, NAME and PASSWORD those of a user; all of them may be missing.
// With KILL, a file, services are published before and after a member is killed: the file is made, and KILL.done
// waited for. Nothing that differs between two runs is printed.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/zeromicro/go-zero/core/discov"
	"github.com/zeromicro/go-zero/core/logx"
)

// No step should come near it, however busy the machine is.
const timeout = time.Minute

var endpoints = strings.Split(os.Getenv("ENDPOINTS"), ",")

func main() {
	logx.Disable()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if name := os.Getenv("NAME"); name != "" {
		discov.RegisterAccount(endpoints, name, os.Getenv("PASSWORD"))
	}
	if authority := os.Getenv("CA"); authority != "" {
		err := discov.RegisterTLS(endpoints, os.Getenv("CERT"), os.Getenv("KEY"), authority, false)
		if err != nil {
			return err
		}
	}
	all, err := discov.NewSubscriber(endpoints, "app/web")
	if err != nil {
		return err
	}
	if os.Getenv("KILL") != "" {
		return failover(all)
	}
	one, err := discov.NewSubscriber(endpoints, "app/web/1", discov.WithExactMatch())
	if err != nil {
		return err
	}
	first, second, refused := publisher("app/web", 1), publisher("app/web", 2), publisher("other/web", 3)
	done := func(do func()) func() error { return func() error { do(); return nil } }
	for _, step := range []struct {
		name     string
		do       func() error
		all, one int
	}{
		{"first published", first.KeepAlive, 1, 1}, {"second published", second.KeepAlive, 2, 1},
		{"first paused", done(first.Pause), 1, 0}, {"first resumed", done(first.Resume), 2, 1},
		{"elsewhere published", refused.KeepAlive, 2, 1}, {"second stopped", done(second.Stop), 1, 1},
		{"first stopped", done(first.Stop), 0, 0},
	} {
		err := step.do()
		if err := await(all, step.all); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		if err := await(one, step.one); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Println(step.name, err, values(all), values(one))
	}
	late, err := discov.NewSubscriber(endpoints, "app/web")
	if err != nil {
		return err
	}
	fmt.Println("late", values(late))
	return nil
}

// failover publishes before and after a member is killed: no service may be missing, nor the end of one.
func failover(all *discov.Subscriber) error {
	var last *discov.Publisher
	for id := int64(1); id <= 20; id++ {
		if id == 11 {
			if err := kill(); err != nil {
				return err
			}
		}
		last = publisher("app/web", id)
		end := time.Now().Add(timeout)
		for err := last.KeepAlive(); err != nil; err = last.KeepAlive() {
			if time.Now().After(end) {
				return err
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	if err := await(all, 20); err != nil {
		return err
	}
	fmt.Println("published", values(all))
	last.Stop()
	if err := await(all, 19); err != nil {
		return err
	}
	fmt.Println("stopped", values(all))
	return nil
}

func publisher(key string, id int64) *discov.Publisher {
	return discov.NewPublisher(endpoints, key, fmt.Sprintf("10.0.0.%d:80", id), discov.WithId(id))
}

func values(subscriber *discov.Subscriber) []string {
	return slices.Sorted(slices.Values(subscriber.Values()))
}

// await returns when the subscriber has so many services.
func await(subscriber *discov.Subscriber, count int) error {
	for end := time.Now().Add(timeout); len(subscriber.Values()) != count; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%v, not %d services", subscriber.Values(), count)
		}
	}
	return nil
}

func kill() error {
	file := os.Getenv("KILL")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(file + ".done"); err == nil {
			return nil
		}
	}
	return fmt.Errorf("no member was killed")
}
