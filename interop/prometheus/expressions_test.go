package prometheus

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// settings are what etcd's files leave open, as they are by default or as this test scrapes.
var settings = strings.NewReplacer(
	"%(etcd_selector)s", `job=~".*etcd.*"`,
	"%(etcd_instance_labels)s", "instance, pod",
	"%(network_failure_range)s", "20",
	"%(clusterLabel)s", "job",
	"%%", "%",
	"$job", job,
	"$cluster", job,
	"$__rate_interval", "1m",
	"%s=", "job=",
	"%s", `job=~".*etcd.*"`,
)

// ofEtcd are the expressions of etcd's alerts and of its dashboard.
func ofEtcd(t *testing.T) (alerts, panels []string) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "go.etcd.io/etcd/v3").Output()
	dir := strings.TrimSpace(string(out))
	if err != nil || dir == "" {
		t.Skipf("left out: the module of etcd is not there: %v", err)
	}
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(dir, "contrib/mixin", path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, found := range regexp.MustCompile(`(?s)expr: \|\|\|\n(.*?)\|\|\|`).FindAllStringSubmatch(read("alerts/alerts.libsonnet"), -1) {
		alerts = append(alerts, strings.TrimSpace(settings.Replace(found[1])))
	}
	// The dashboard of today's Grafana, and the one of Grafana 7.
	for _, path := range []string{"dashboards/targets.libsonnet", "dashboards/etcd-grafana7x.libsonnet"} {
		for _, found := range regexp.MustCompile(`'([^'\n]*\{[^'\n]*\$cluster[^'\n]*)'`).FindAllStringSubmatch(read(path), -1) {
			panels = append(panels, settings.Replace(found[1]))
		}
	}
	if len(alerts) < 15 || len(panels) < 30 {
		t.Fatalf("%d alerts and %d panels were found in %s", len(alerts), len(panels), dir)
	}
	return alerts, panels
}

// ofDashboard are the expressions of our dashboard.
func ofDashboard(t *testing.T) []string {
	text, err := os.ReadFile("../../deploy/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	var expressions []string
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			expressions = append(expressions, strings.NewReplacer("$job", job, "$instance", ".*", "$__rate_interval", "1m").Replace(target.Expr))
		}
	}
	return expressions
}
