package main

import (
	"context"
	"errors"
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
	members cluster.Usage
	api     cluster.Usage
	metrics cluster.Metrics
}

func look(ctx context.Context, env *check.Env) (moment, error) {
	now := moment{at: time.Now()}
	var errs [3]error
	now.members, errs[0] = env.Members.Usage()
	now.api, errs[1] = env.API.Usage()
	now.metrics, errs[2] = env.API.Metrics(ctx)
	return now, errors.Join(errs[:]...)
}

// measure runs the load on a control plane and returns its figures.
func measure(ctx context.Context, env *check.Env, o options) ([]figure, error) {
	before, err := look(ctx, env)
	if err != nil {
		return nil, err
	}
	var phases, sizes []figure
	began := before
	plan := load.Plan{Pods: o.objects, Nodes: o.nodes, Steady: o.steady, Churn: o.churn}
	latencies, err := load.Run(ctx, env.Client, plan, func(phase load.Phase) error {
		after, err := look(ctx, env)
		if err != nil {
			return err
		}
		disk, err := env.Members.DiskUsage()
		fmt.Printf("  %s: %.1f s\n", phase, after.at.Sub(before.at).Seconds())
		phases = append(phases, ofPhase(string(phase), before, after)...)
		sizes = append(sizes,
			figure{fmt.Sprintf("largest member after %s: resident memory, MB", phase),
				float64(after.members.ResidentBytes) / 1e6},
			figure{fmt.Sprintf("largest member after %s: disk, MB", phase), float64(disk) / 1e6})
		before = after
		return err
	})
	if err != nil {
		return nil, err
	}
	figures := append(ofPhase("all", began, before), phases...)
	figures = append(figures, ofVerbs(began, before)...)
	for _, request := range latencies.Requests() {
		figures = append(figures,
			figure{"client: " + request + ", p50, ms", latencies.Quantile(request, 0.5).Seconds() * 1e3},
			figure{"client: " + request + ", p99, ms", latencies.Quantile(request, 0.99).Seconds() * 1e3})
	}
	figures = append(figures, figure{"client: requests of the steady phase that failed", float64(latencies.Failed())})
	figures = append(figures, sizes...)
	figures = append(figures,
		figure{"largest member: peak of resident memory, MB", float64(before.members.PeakBytes) / 1e6})
	restart, err := restarted(ctx, env)
	return append(figures, figure{"a killed follower: from its start to readyz, s", restart.Seconds()}), err
}

// Fewer observations have no 99th percentile.
const observationsMin = 500

// ofPhase is what changed between two moments.
func ofPhase(phase string, before, after moment) []figure {
	const requests = "etcd_request_duration_seconds"
	cpu, took := after.members.CPU-before.members.CPU, after.at.Sub(before.at)
	all := after.metrics.Since(before.metrics, requests, nil)
	const failed = "etcd_request_errors_total"
	figures := []figure{
		{phase + ": s", took.Seconds()},
		{phase + ": CPU of the members, s", cpu.Seconds()},
		{phase + ": CPU of the apiserver, s", (after.api.CPU - before.api.CPU).Seconds()},
		{phase + ": requests to the store", all.Count},
		{phase + ": requests to the store that failed",
			after.metrics.Sum(failed, nil) - before.metrics.Sum(failed, nil)},
		{phase + ": CPU of the members for a request, µs", cpu.Seconds() / all.Count * 1e6},
	}
	operations := []string{
		"", "get", "list", "listStream", "listWithCount", "getCurrentResourceVersion", "create", "update", "delete",
	}
	for _, operation := range operations {
		labels, name := map[string]string{"operation": operation}, operation
		if operation == "" {
			labels, name = nil, "every request"
		}
		figures = append(figures, ofHistogram(fmt.Sprintf("%s: store, %s", phase, name),
			after.metrics.Since(before.metrics, requests, labels))...)
	}
	return figures
}

// ofVerbs is how long the apiserver took for requests of its clients, as its own histogram has it. Watches last
// as long as they are wanted.
func ofVerbs(before, after moment) []figure {
	var figures []figure
	for _, verb := range []string{"GET", "LIST", "POST", "PUT", "PATCH", "DELETE"} {
		seen := after.metrics.Since(before.metrics, "apiserver_request_duration_seconds", map[string]string{"verb": verb})
		figures = append(figures, ofHistogram("apiserver, "+verb, seen)...)
	}
	return figures
}

func ofHistogram(name string, seen cluster.Histogram) []figure {
	if seen.Count < observationsMin {
		return nil
	}
	return []figure{
		{name + ": count", seen.Count},
		{name + ": p50, ms", seen.Quantile(0.5) * 1e3},
		{name + ": p99, ms", seen.Quantile(0.99) * 1e3},
	}
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
	if len(outcomes) == 0 || len(outcomes[0].figures) == 0 {
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
			switch {
			case i < 0:
				fmt.Print(" | |") // too few such requests were made
			case outcomes[1].figures[i].value == 0:
				fmt.Print(" 0.00 | |")
			default:
				second := outcomes[1].figures[i].value
				fmt.Printf(" %.2f | %.2f |", second, first.value/second)
			}
		}
		fmt.Println()
	}
}
