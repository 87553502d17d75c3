// Package http2 holds tests of the HTTP/2 server by programs that know nothing of etcd: h2spec, curl, nghttp, Go's own
// client and Chromium. One member with TLS, where every program may speak HTTP/2 and /health is answered.
//
//	KV_SERVER_BIN   the server to test; without it, target/debug/kv-server.
//	interop/bin     h2spec, as build.sh makes it. Programs that are not on this machine are left out, and named.
//	CHROMIUM        the browser, if it is not called chromium.
package http2

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kv-server/interop/internal/process"
)

const (
	patience = 2 * time.Minute
	healthy  = `{"health":"true","reason":""}`
)

// What h2spec asks for and does not get, with the reason.
var excused = map[string]string{
	"Sends invalid connection preface": "the port speaks HTTP/1.1 too, and answers it as such",
}

func serverBinary(t *testing.T) string {
	binary := os.Getenv("KV_SERVER_BIN")
	if binary == "" {
		binary = "../../target/debug/kv-server"
	}
	path, err := filepath.Abs(binary)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("KV_SERVER_BIN") != "" {
			t.Fatal(err)
		}
		t.Skipf("left out: no server at %s; run `cargo build -p kv-server`, or set KV_SERVER_BIN", path)
	}
	return path
}

// start runs a member whose client port has a certificate of its own, and returns that port once it is healthy.
func start(t *testing.T) int {
	t.Helper()
	members, err := process.Prepare(serverBinary(t), t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	member := members[0]
	secure := strings.Replace(member.ClientURL, "http:", "https:", 1)
	port, err := strconv.Atoi(secure[strings.LastIndex(secure, ":")+1:])
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(serverBinary(t), "--name", member.Name, "--data-dir", member.DataDir, "--auto-tls",
		"--listen-client-urls", secure, "--advertise-client-urls", secure,
		"--listen-peer-urls", member.PeerURL, "--initial-advertise-peer-urls", member.PeerURL,
		"--initial-cluster", member.InitialCluster)
	var log bytes.Buffer
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // It may have ended.
		_ = command.Wait()
		if t.Failed() {
			t.Logf("the member said:\n%s", log.String())
		}
	})
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if answer, err := get(secure + "/health"); err == nil && answer == healthy+" HTTP/2.0" {
			return port
		} else if time.Now().After(deadline) {
			t.Fatalf("not healthy: %q, %v\n%s", answer, err, log.String())
		}
	}
}

// get asks with Go's client, and returns the answer and its protocol.
func get(url string) (string, error) {
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // Its certificate was made a moment ago.
		ForceAttemptHTTP2: true,
		DisableKeepAlives: true,
	}}
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body) + " " + response.Proto, err
}

// program runs one, and returns what it printed on its standard output and whether it ended well.
func program(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("left out: %v", err)
	}
	bounded, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	output, err := exec.CommandContext(bounded, path, args...).Output()
	return string(output), err
}

func TestPrograms(t *testing.T) {
	url := fmt.Sprintf("https://127.0.0.1:%d/health", start(t))
	type check struct{ name, command, want string }
	checks := []check{
		{"curl", "curl -sk --http2 -w %{http_version} " + url, healthy + "2"},
		{"curl over HTTP/1.1", "curl -sk --http1.1 -w %{http_version} " + url, healthy + "1.1"},
		{"curl with a body and its trailer", "curl -sk --http2 -d {} -w %{http_version} " + url, "2"},
		{"nghttp", "nghttp -y " + url, healthy},
		{"nghttp, with padding and a small window", "nghttp -y -b 100 -w 1 -W 1 --continuation " + url, healthy},
	}
	// The answer, which needs no body, and the body cross each other: in different ways each time.
	for range 30 {
		checks = append(checks, checks[2])
	}
	for _, check := range checks {
		t.Run(check.name, func(t *testing.T) {
			words := strings.Fields(check.command)
			got, err := program(t, words[0], words[1:]...)
			if err != nil || !strings.HasSuffix(got, check.want) {
				t.Errorf("%s: %q, %v; want %q", check.command, got, err, check.want)
			}
		})
	}
}

// A browser shows the answer, and says in its log of the network that it came over HTTP/2.
func TestChromium(t *testing.T) {
	url := fmt.Sprintf("https://127.0.0.1:%d/health", start(t))
	browser := os.Getenv("CHROMIUM")
	if browser == "" {
		browser = "chromium"
	}
	log := filepath.Join(t.TempDir(), "net.json")
	page, err := program(t, browser, "--headless", "--no-sandbox", "--disable-gpu", "--ignore-certificate-errors",
		"--user-data-dir="+t.TempDir(), "--log-net-log="+log, "--dump-dom", url)
	if err != nil || !strings.Contains(page, healthy) {
		t.Fatalf("%q, %v", page, err)
	}
	said, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(said, []byte(`"negotiated_protocol":"h2"`)) {
		t.Errorf("%s does not name HTTP/2", log)
	}
}

// The suites of h2spec's report.
type report struct {
	Suites []struct {
		Cases []struct {
			Name    string  `xml:"classname,attr"`
			Failure *string `xml:"failure"`
			Error   *string `xml:"error"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

func TestH2spec(t *testing.T) {
	path, err := filepath.Abs("../bin/h2spec")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("left out: no %s; run interop/build.sh", path)
	}
	port := start(t)
	file := filepath.Join(t.TempDir(), "report.xml")
	// It ends with 1 if a case fails; which ones may is judged below.
	output, _ := program(t, path, "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-t", "-k", "-P", "/health",
		"--strict", "--timeout", "10", "-j", file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	var found report
	if err := xml.Unmarshal(text, &found); err != nil {
		t.Fatal(err)
	}
	cases, failed := 0, 0
	for _, suite := range found.Suites {
		for _, one := range suite.Cases {
			cases++
			if one.Failure == nil && one.Error == nil {
				continue
			}
			failed++
			if reason, ok := excused[one.Name]; ok {
				t.Logf("%s: %s", one.Name, reason)
				continue
			}
			t.Errorf("h2spec: %s", one.Name)
		}
	}
	t.Logf("%d cases, %d not passed", cases, failed)
	if cases < 146 {
		t.Errorf("h2spec ran %d cases of 146\n%s", cases, output)
	}
}
