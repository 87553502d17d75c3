// Package prometheus holds tests of dashboards and alerts: a real Prometheus scrapes three real members and evaluates
// every expression of etcd's alert rules, of etcd's dashboard, and of the rules and the dashboard in deploy/monitoring.
//
//	KV_SERVER_BIN   the server to test; without it, target/debug/kv-server. etcd's binary passes all but the last test.
//
// Needs `prometheus` and `promtool` in the path, as Debian's package prometheus has them; left out otherwise. etcd's
// expressions are read from its module, which the go command has for its tools.
package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"kv-server/interop/internal/process"
)

const (
	job = "etcd"
	// Series of rates need two scrapes; a busy machine needs patience.
	patience = 90 * time.Second
)

func serverBinary() string {
	if binary := os.Getenv("KV_SERVER_BIN"); binary != "" {
		return binary
	}
	return "../../target/debug/kv-server"
}

// started are three members that served all kinds of calls, of which one was killed and started again.
func started(t *testing.T) []*process.Member {
	binary, err := filepath.Abs(serverBinary())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("left out: no server at %s", binary)
	}
	for _, tool := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("left out: no %s in the path", tool)
		}
	}
	members, err := process.Prepare(binary, t.TempDir(), 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range members {
		member.AddFlags("--metrics=extensive")
		if isOurs(t) {
			member.AddFlags("--metrics-top=10", "--memory-limit=4GiB")
		}
	}
	if err := process.StartAll(members); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, member := range members {
			member.Kill()
		}
	})
	return members
}

func isOurs(t *testing.T) bool {
	out, err := exec.Command(serverBinary(), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(out), "kv-server")
}

// use makes calls of all kinds until ctx ends.
func use(ctx context.Context, t *testing.T, members []*process.Member) {
	var endpoints []string
	for _, member := range members {
		endpoints = append(endpoints, member.ClientURL)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Error(err)
		return
	}
	defer client.Close()
	watch := client.Watch(ctx, "k", clientv3.WithPrefix())
	lease, err := client.Grant(ctx, 600)
	if err == nil {
		_, err = client.KeepAlive(ctx, lease.ID)
	}
	if err != nil && ctx.Err() == nil {
		t.Error(err)
	}
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("k%d", n%100)
		// Members come and go here: a call may fail.
		_, _ = client.Put(ctx, key, "value")
		_, _ = client.Get(ctx, key)
		_, _ = client.Txn(ctx).Then(clientv3.OpDelete(key)).Commit()
		_, _ = client.Put(ctx, "", "refused")
		select {
		case <-watch:
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// server is a running Prometheus.
type server struct{ url string }

// scrape starts Prometheus on the members, with rules.
func scrape(t *testing.T, members []*process.Member, rules map[string]string) server {
	dir := t.TempDir()
	var targets, files []string
	for _, member := range members {
		targets = append(targets, fmt.Sprintf("%q", strings.TrimPrefix(member.ClientURL, "http://")))
	}
	for name, text := range rules {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, fmt.Sprintf("%q", path))
	}
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%s]\n"+
		"scrape_configs:\n- job_name: %s\n  static_configs:\n  - targets: [%s]\n",
		strings.Join(files, ", "), job, strings.Join(targets, ", "))
	path := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	command := exec.Command("prometheus", "--config.file="+path, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return server{url: "http://" + address}
}

// ask gets a path of Prometheus' API.
func (s server) ask(path string, into any) error {
	response, err := http.Get(s.url + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, text)
	}
	return json.Unmarshal(text, into)
}

// samples is how many series an expression gives now.
func (s server) samples(expression string) (int, error) {
	var answer struct {
		Data struct{ Result []json.RawMessage }
	}
	err := s.ask("/api/v1/query?query="+url.QueryEscape(expression), &answer)
	return len(answer.Data.Result), err
}

// rule is a rule and how its evaluation went.
type rule struct{ Name, Query, Health, LastError string }

func (s server) rules() ([]rule, error) {
	var answer struct {
		Data struct{ Groups []struct{ Rules []rule } }
	}
	err := s.ask("/api/v1/rules", &answer)
	var all []rule
	for _, group := range answer.Data.Groups {
		all = append(all, group.Rules...)
	}
	return all, err
}

// selectors are the metrics that an expression names, each with its labels.
var selectors = regexp.MustCompile(`\b(?:etcd|grpc_server|kv_server|process|os|go)_[a-z_]+(?:\{[^}]*\})?`)

// require waits until each of the expressions gives series. A name in mayBeEmpty does so only after a fault, or is not asked
// for.
func (s server) require(t *testing.T, from string, expressions []string, mayBeEmpty ...string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for _, expression := range expressions {
		exempt := false
		for _, name := range mayBeEmpty {
			exempt = exempt || strings.Contains(expression, name)
		}
		for {
			found, err := s.samples(expression)
			if err == nil && (found > 0 || exempt) {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: %d series, %v: %s", from, found, err, expression)
				break
			}
			time.Sleep(500 * time.Millisecond)
		}
	}
}

// requireEvaluated waits until all rules were evaluated.
func (s server) requireEvaluated(t *testing.T, wanted int) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		rules, err := s.rules()
		evaluated := 0
		for _, rule := range rules {
			if rule.Health == "err" {
				t.Fatalf("%s: %s: %s", rule.Name, rule.LastError, rule.Query)
			}
			if rule.Health == "ok" {
				evaluated++
			}
		}
		if err == nil && evaluated == wanted && len(rules) == wanted {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d rules were evaluated, %d wanted: %v", evaluated, len(rules), wanted, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func TestExpressionsOfEtcdEvaluate(t *testing.T) {
	alerts, panels := ofEtcd(t)
	members := started(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go use(ctx, t, members)
	var rules strings.Builder
	rules.WriteString("groups:\n- name: etcd\n  rules:\n")
	for n, expression := range append(append([]string{}, alerts...), panels...) {
		fmt.Fprintf(&rules, "  - {record: expression:%d, expr: %q}\n", n, expression)
	}
	prometheus := scrape(t, members, map[string]string{"etcd.yml": rules.String()})
	prometheus.requireEvaluated(t, len(alerts)+len(panels))
	prometheus.require(t, "etcd's dashboard", panels)
	var named []string
	for _, expression := range alerts {
		named = append(named, selectors.FindAllString(expression, -1)...)
	}
	prometheus.require(t, "etcd's alerts", named, "etcd_network_peer_sent_failures_total")
	// A member that is away: what an alert watches is there then.
	members[2].Kill()
	prometheus.require(t, "etcd's alerts", []string{"etcd_network_peer_sent_failures_total > 0", alerts[0]})
}

func TestMetricsFollowTheirRules(t *testing.T) {
	members := started(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	use(ctx, t, members)
	response, err := http.Get(members[0].ClientURL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = response.Body
	said, err := check.CombinedOutput()
	var ours []string
	for line := range strings.Lines(string(said)) {
		// etcd owns these names, and they break the rules.
		if !strings.HasPrefix(line, "etcd_") {
			ours = append(ours, line)
		}
	}
	if len(ours) > 0 || (err != nil && len(said) == 0) {
		t.Errorf("%v\n%s", err, strings.Join(ours, ""))
	}
	t.Logf("names of etcd that break the rules:\n%s", said)
}

func TestAlertsFireForWhatTheyNameAlone(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("left out: no promtool in the path")
	}
	if said, err := exec.Command("promtool", "test", "rules", "alerts.yml").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

func TestExpressionsOfOursEvaluate(t *testing.T) {
	members := started(t)
	if !isOurs(t) {
		t.Skip("left out: not the server that these are for")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go use(ctx, t, members)
	text, err := os.ReadFile("../../deploy/monitoring/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	prometheus := scrape(t, members, map[string]string{"rules.yml": string(text)})
	wanted := len(regexp.MustCompile(`(?m)^ +- (record|alert): `).FindAll(text, -1))
	prometheus.requireEvaluated(t, wanted)
	// Members without TLS and without alarms have no series of these.
	absent := []string{"kv_server_certificate_not_after_timestamp_seconds", "etcd_debugging_server_alarms"}
	prometheus.require(t, "rules.yml", selectors.FindAllString(withoutText(string(text)), -1), absent...)
	prometheus.require(t, "dashboard.json", ofDashboard(t))
}

// withoutText leaves the expressions of a file of rules.
func withoutText(rules string) string {
	var kept []string
	skip := false
	for line := range strings.Lines(rules) {
		switch trimmed := strings.TrimSpace(line); {
		case strings.HasPrefix(trimmed, "expr:"):
			skip = false
		case strings.HasPrefix(trimmed, "- "), strings.HasPrefix(trimmed, "labels:"), strings.HasPrefix(trimmed, "annotations:"),
			strings.HasPrefix(trimmed, "for:"), strings.HasPrefix(trimmed, "#"):
			skip = true
		}
		if !skip {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}
