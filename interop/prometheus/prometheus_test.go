// Package prometheus holds tests of dashboards and alerts: a real Prometheus scrapes three real members and evaluates
// every expression of etcd's alert rules, of etcd's dashboard, and of the rules and the dashboard in deploy/monitoring. Each
// must give a number under load: a quantile of a histogram without its last bucket, for example, is none.
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
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
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
		if n%50 == 49 {
			// Writes a checkpoint, of which there is one a minute under this load otherwise.
			_, _ = client.Defragment(ctx, endpoints[n/50%len(endpoints)])
		}
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

// finite is how many series an expression gives now, and how many of them have a value that is a number.
func (s server) finite(expression string) (finite, series int, err error) {
	var answer struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	err = s.ask("/api/v1/query?query="+url.QueryEscape(expression), &answer)
	for _, result := range answer.Data.Result {
		text, _ := result.Value[1].(string)
		value, bad := strconv.ParseFloat(text, 64)
		if bad == nil && !math.IsNaN(value) && !math.IsInf(value, 0) {
			finite++
		}
	}
	return finite, len(answer.Data.Result), err
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

// threshold is a comparison of an alert with a number.
var threshold = regexp.MustCompile(`\s(==|!=|>=|<=|>|<)\s+[0-9][0-9.e+]*`)

// measured is what an alert compares: its expression without thresholds. A comparison with another expression is dropped
// with that expression.
func measured(alert string) string {
	left := threshold.ReplaceAllString(strings.ReplaceAll(alert, ":1m]", ":1s]"), "")
	depth := 0
	for at, char := range left {
		switch char {
		case '(', '{', '[':
			depth++
		case ')', '}', ']':
			depth--
		case '<', '>':
			if depth == 0 {
				return left[:at]
			}
		}
	}
	return left
}

// require waits until each of the expressions gives a number.
func (s server) require(t *testing.T, from string, expressions []string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for _, expression := range expressions {
		for {
			finite, series, err := s.finite(expression)
			if err == nil && finite > 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: %d series, %d of them with a number, %v: %s", from, series, finite, err, expression)
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
	var compared []string
	for _, alert := range alerts {
		compared = append(compared, measured(alert))
	}
	prometheus.require(t, "etcd's alerts", compared)
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
	rules, err := prometheus.rules()
	if err != nil {
		t.Fatal(err)
	}
	// Members without TLS, alarms and an archive have no series of these.
	absent := regexp.MustCompile(`kv_server_certificate_not_after|etcd_debugging_server_alarms|kv_archive_behind`)
	var compared []string
	for _, rule := range rules {
		if absent.MatchString(rule.Query) {
			continue
		}
		compared = append(compared, measured(rule.Query))
	}
	prometheus.require(t, "rules.yml", compared)
	prometheus.require(t, "dashboard.json", ofDashboard(t))
}
