package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"kv-server/interop/kubernetes/internal/check"
	"kv-server/interop/kubernetes/internal/cluster"
	"kv-server/interop/kubernetes/internal/load"
)

// figure is a number of one server.
type figure struct {
	name  string
	value float64
}

// moment is what is counted at the end of a phase.
type moment struct {
	at      time.Time
	cpu     time.Duration
	metrics cluster.Metrics
}

func look(ctx context.Context, env *check.Env) (moment, error) {
	now := moment{at: time.Now()}
	var err error
	if now.cpu, _, err = env.Members.Usage(); err != nil {
		return now, err
	}
	now.metrics, err = env.API.Metrics(ctx)
	return now, err
}

// measure runs the load on a control plane and returns its figures.
func measure(ctx context.Context, env *check.Env, o options) ([]figure, error) {
	before, err := look(ctx, env)
	if err != nil {
		return nil, err
	}
	var figures []figure
	disk := map[load.Phase]int64{}
	began := before
	plan := load.Plan{Pods: o.objects, Nodes: o.nodes, Steady: o.steady, Churn: o.churn}
	latencies, err := load.Run(ctx, env.Client, plan, func(phase load.Phase) error {
		after, err := look(ctx, env)
		if err != nil {
			return err
		}
		figures = append(figures, ofPhase(string(phase), before, after)...)
		before = after
		disk[phase], err = env.Members.DiskUsage()
		return err
	})
	if err != nil {
		return nil, err
	}
	_, resident, err := env.Members.Usage()
	if err != nil {
		return nil, err
	}
	figures = append(ofPhase("all", began, before), figures...)
	for _, request := range latencies.Requests() {
		figures = append(figures,
			figure{request + ", p50, ms", latencies.Quantile(request, 0.5).Seconds() * 1e3},
			figure{request + ", p99, ms", latencies.Quantile(request, 0.99).Seconds() * 1e3})
	}
	figures = append(figures, figure{"members: resident memory of the largest, MB", float64(resident) / 1e6})
	for _, phase := range []load.Phase{load.Making, load.Steady, load.Deleting} {
		figures = append(figures,
			figure{fmt.Sprintf("members: disk of the largest after %s, MB", phase), float64(disk[phase]) / 1e6})
	}
	restart, err := restarted(ctx, env)
	return append(figures, figure{"a killed follower: from its start to readyz, s", restart.Seconds()}), err
}

// ofPhase is what changed between two moments.
func ofPhase(phase string, before, after moment) []figure {
	const requests = "etcd_request_duration_seconds"
	cpu, took := after.cpu-before.cpu, after.at.Sub(before.at)
	all := after.metrics.Since(before.metrics, requests, nil)
	figures := []figure{
		{phase + ": s", took.Seconds()},
		{phase + ": processor time of the members, s", cpu.Seconds()},
		{phase + ": requests to the store", all.Count},
		{phase + ": processor time of a request to the store, µs", cpu.Seconds() / all.Count * 1e6},
	}
	for _, operation := range []string{"", "get", "list", "listWithCount", "create", "update", "delete"} {
		labels := map[string]string{"operation": operation}
		name := operation
		if operation == "" {
			labels, name = nil, "every request"
		}
		seen := after.metrics.Since(before.metrics, requests, labels)
		// Fewer have no 99th percentile.
		if seen.Count < 500 {
			continue
		}
		figures = append(figures,
			figure{fmt.Sprintf("%s: the store as the apiserver sees it, %s, mean, ms", phase, name), seen.Mean() * 1e3},
			figure{fmt.Sprintf("%s: the store as the apiserver sees it, %s, p99, ms", phase, name),
				seen.Quantile(0.99) * 1e3})
	}
	return figures
}

// restarted kills a follower and starts it again.
func restarted(ctx context.Context, env *check.Env) (time.Duration, error) {
	victim, err := env.Members.Follower(ctx, env.Store)
	if err != nil {
		return 0, err
	}
	env.Members.KillMember(victim)
	began := time.Now()
	err = env.Members.StartMember(ctx, victim)
	return time.Since(began), err
}

// printFigures prints a table in Markdown: one column for each server, and the ratio of the first to the
// second.
func printFigures(outcomes []outcome) {
	if len(outcomes[0].figures) == 0 {
		return
	}
	fmt.Print("\n| |")
	for _, one := range outcomes {
		fmt.Printf(" %s |", one.server)
	}
	isPair := len(outcomes) == 2
	if isPair {
		fmt.Print(" ratio |")
	}
	fmt.Print("\n|---|--:|")
	if isPair {
		fmt.Print("--:|--:|")
	}
	fmt.Println()
	for _, first := range outcomes[0].figures {
		fmt.Printf("| %s | %.2f |", first.name, first.value)
		if isPair {
			i := slices.IndexFunc(outcomes[1].figures, func(second figure) bool { return second.name == first.name })
			if i < 0 {
				fmt.Print(" | |") // such requests were not made
			} else {
				second := outcomes[1].figures[i].value
				fmt.Printf(" %.2f | %.2f |", second, first.value/second)
			}
		}
		fmt.Println()
	}
}
