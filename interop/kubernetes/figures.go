package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"kv-server/interop/kubernetes/internal/check"
	"kv-server/interop/kubernetes/internal/load"
)

// figure is a number of one server.
type figure struct {
	name  string
	value float64
}

// measure runs the load on a control plane and returns its figures.
func measure(ctx context.Context, env *check.Env, o options) ([]figure, error) {
	before, err := env.API.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	cpuBefore, _, err := env.Members.Usage()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	latencies, err := load.Run(ctx, env.Client, o.objects, o.steady)
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	cpu, resident, err := env.Members.Usage()
	if err != nil {
		return nil, err
	}
	after, err := env.API.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	cpu -= cpuBefore
	all := after.Since(before, "etcd_request_duration_seconds", nil)
	figures := []figure{
		{"members: processor time, s", cpu.Seconds()},
		{"members: processor time of a request of the apiserver, µs", cpu.Seconds() / all.Count * 1e6},
		{"members: resident memory of the largest, MB", float64(resident) / 1e6},
		{"the whole load, s", took.Seconds()},
	}
	for _, operation := range []string{"get", "list", "listWithCount", "create", "update", "delete"} {
		seen := after.Since(before, "etcd_request_duration_seconds", map[string]string{"operation": operation})
		if seen.Count == 0 {
			continue
		}
		figures = append(figures,
			figure{fmt.Sprintf("store as the apiserver sees it: %s, mean, ms", operation), seen.Mean() * 1e3},
			figure{fmt.Sprintf("store as the apiserver sees it: %s, p99, ms", operation), seen.Quantile(0.99) * 1e3})
	}
	for _, request := range latencies.Requests() {
		figures = append(figures,
			figure{request + ", p50, ms", latencies.Quantile(request, 0.5).Seconds() * 1e3},
			figure{request + ", p99, ms", latencies.Quantile(request, 0.99).Seconds() * 1e3})
	}
	return figures, nil
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
