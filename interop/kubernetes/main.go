// Command kubernetes runs a real kube-apiserver on three members of kv-server, and on three members of
// etcd, and asks both the same questions. See README.md beside it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	extensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"kv-server/interop/kubernetes/internal/check"
	"kv-server/interop/kubernetes/internal/cluster"
	"kv-server/interop/kubernetes/internal/pki"
)

// options are the command line.
type options struct {
	server    string
	kvServer  string
	etcd      string
	apiserver string
	objects   int
	nodes     int
	churn     int
	steady    time.Duration
	isMove    bool
	isReplace bool
	keep      bool
}

// outcome is what one server let be seen.
type outcome struct {
	server  string
	results []check.Result
	figures []figure
}

func main() {
	var o options
	flag.StringVar(&o.server, "server", "both", "kv-server, etcd, or both in turn")
	flag.StringVar(&o.kvServer, "kv-server", "", "the program kv-server")
	flag.StringVar(&o.etcd, "etcd", "", "the program etcd")
	flag.StringVar(&o.apiserver, "kube-apiserver", "", "the program kube-apiserver")
	flag.IntVar(&o.objects, "objects", 0, "run a load of so many pods instead of the checks, and print figures")
	flag.IntVar(&o.nodes, "nodes", 100, "nodes of the load, each with a lease that is renewed every ten seconds")
	flag.IntVar(&o.churn, "churn", 20, "pods of the load that report another status, a second")
	flag.DurationVar(&o.steady, "steady", time.Minute, "how long the load renews leases between its puts and deletes")
	flag.BoolVar(&o.isMove, "move", false, "move the data from etcd to kv-server and back, instead of the checks")
	flag.BoolVar(&o.isReplace, "replace", false,
		"replace etcd by kv-server while the apiserver runs, instead of the checks")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs and data of a run without failures")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		cancel()
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	klog.SetLogger(logr.Discard()) // the client package logs every retry
	programs := map[string]string{"kv-server": o.kvServer, "etcd": o.etcd}
	servers := []string{o.server}
	switch {
	case o.isMove || o.isReplace:
		servers = []string{"etcd"}
	case o.server == "both":
		servers = []string{"kv-server", "etcd"}
	}
	var outcomes []outcome
	for _, server := range servers {
		program, isKnown := programs[server]
		if !isKnown {
			return fmt.Errorf("-server %s: want kv-server, etcd or both", server)
		}
		seen, err := one(ctx, o, server, program)
		if err != nil {
			printFigures(outcomes) // those of the server before are not lost
			return fmt.Errorf("%s: %w", server, err)
		}
		outcomes = append(outcomes, seen)
	}
	if o.objects > 0 {
		printFigures(outcomes)
		return nil
	}
	return judge(outcomes)
}

// one runs all checks, or the load, with one server.
func one(ctx context.Context, o options, server, program string) (seen outcome, err error) {
	seen.server = server
	dir, err := os.MkdirTemp("", "kubernetes-"+server+"-")
	if err != nil {
		return seen, err
	}
	defer func() {
		failed := slices.ContainsFunc(seen.results, func(result check.Result) bool { return result.Err != nil })
		if o.keep || failed || err != nil {
			fmt.Printf("logs and data: %s\n", dir)
			return
		}
		_ = os.RemoveAll(dir)
	}()
	keys, err := pki.Write(filepath.Join(dir, "pki"))
	if err != nil {
		return seen, err
	}
	fmt.Printf("\n%s\n", server)
	members, err := cluster.StartMembers(ctx, program, dir, keys)
	if members != nil {
		defer members.Stop()
	}
	if err != nil {
		return seen, err
	}
	endpoints := members.Endpoints()
	var gates *cluster.Gates
	if o.isReplace {
		if gates, err = members.OpenGates(); err != nil {
			return seen, err
		}
		defer gates.Stop()
		endpoints = gates.Endpoints()
	}
	api, err := cluster.StartAPIServer(ctx, o.apiserver, dir, members, endpoints)
	if api != nil {
		defer api.Stop()
	}
	if err != nil {
		return seen, err
	}
	env, err := connect(members, api)
	if err != nil {
		return seen, err
	}
	defer env.Store.Close()
	if o.objects > 0 {
		seen.figures, err = measure(ctx, env, o)
		return seen, err
	}
	if o.isReplace {
		seen.results = check.Replace(ctx, env, dir, o.kvServer, gates, report)
		return seen, nil
	}
	if o.isMove {
		programs := []cluster.Program{cluster.KvServer(o.kvServer), cluster.Etcd(o.etcd)}
		seen.results = check.Move(ctx, env, dir, programs, report)
		return seen, nil
	}
	seen.results = check.Run(ctx, env, report)
	return seen, nil
}

func connect(members *cluster.Members, api *cluster.APIServer) (*check.Env, error) {
	env := &check.Env{Members: members, API: api}
	config := api.Config()
	var errs [4]error
	// As the components of Kubernetes do. Custom resources have no such encoding.
	encoded := api.Config()
	encoded.ContentType = runtime.ContentTypeProtobuf
	env.Client, errs[0] = kubernetes.NewForConfig(encoded)
	env.Dynamic, errs[1] = dynamic.NewForConfig(config)
	env.Extensions, errs[2] = extensions.NewForConfig(config)
	env.Store, errs[3] = members.Connect()
	return env, errors.Join(errs[:]...)
}

func report(result check.Result) {
	verdict := "ok    "
	if result.Err != nil {
		verdict = "FAILED"
	}
	fmt.Printf("  %s %6.1f s  %s\n", verdict, result.Took.Seconds(), result.Name)
	for _, remark := range result.Remarks {
		fmt.Printf("                     %s\n", remark)
	}
	if result.Err != nil {
		fmt.Printf("                     %v\n", result.Err)
	}
}

// judge prints the differences between the servers, and fails if there are any, or if a check failed.
func judge(outcomes []outcome) error {
	failed, differences := 0, 0
	for _, one := range outcomes {
		for _, result := range one.results {
			if result.Err != nil {
				failed++
			}
		}
	}
	fmt.Println()
	if len(outcomes) == 2 {
		for i, result := range outcomes[0].results {
			differences += compare(outcomes[0].server, outcomes[1].server, result, outcomes[1].results[i])
		}
	}
	observed := 0
	for _, result := range outcomes[0].results {
		observed += len(result.Observed)
	}
	for _, one := range outcomes {
		fmt.Printf("%s: %d checks\n", one.server, len(one.results))
	}
	fmt.Printf("%d failed; %d observations, %d differences\n", failed, observed, differences)
	if failed+differences > 0 {
		return errors.New("not the same")
	}
	return nil
}

func compare(first, second string, a, b check.Result) int {
	if slices.Equal(a.Observed, b.Observed) {
		return 0
	}
	fmt.Printf("different: %s\n", a.Name)
	for i := range max(len(a.Observed), len(b.Observed)) {
		at := func(observed []string) string {
			if i < len(observed) {
				return observed[i]
			}
			return "(nothing)"
		}
		if at(a.Observed) != at(b.Observed) {
			fmt.Printf("  %-9s  %s\n  %-9s  %s\n", first, indent(at(a.Observed)), second, indent(at(b.Observed)))
		}
	}
	return 1
}

func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n             ") }
