// Command certificates asks etcd which certificates it accepts, and records the answers with the certificates.
//
//	go run ./cmd/certificates -etcd bin/etcd > ../crates/transport/src/tls/setup/etcd.tsv
//
// Roles: "client" shows a chain to etcd's client port; "server" is a peer that etcd dials; "shown" is a certificate
// that etcd is started with. "random" chains are judged by Go's crypto/x509 alone, which etcd uses.
//
// One line each: role, name, answer, roots, chain, key of the first certificate, etcd's words.
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"kv-server/interop/internal/process"
)

var (
	etcd = flag.String("etcd", "bin/etcd", "etcd's program")
	only = flag.String("only", "", "ask for names that match this alone, and for no random chain")
)

func main() {
	flag.Parse()
	all := cases()
	slices.SortStableFunc(all, func(a, b question) int { return cmp.Compare(a.role+a.name, b.role+b.name) })
	for _, question := range all {
		if !regexp.MustCompile(*only).MatchString(question.name) {
			continue
		}
		answer, words := ask(question)
		fmt.Println(line(question, answer, words))
		log.Printf("%s %s: %s %s", question.role, question.name, answer, words)
	}
	for _, question := range random(150) {
		if *only != "" {
			break
		}
		answer, words := judge(question)
		fmt.Println(line(question, answer, words))
	}
}

func line(question question, answer, words string) string {
	text := func(all []*issued) string {
		var parts []string
		for _, one := range all {
			parts = append(parts, base64.StdEncoding.EncodeToString(one.der))
		}
		return strings.Join(parts, ",")
	}
	key := base64.StdEncoding.EncodeToString(must(x509.MarshalPKCS8PrivateKey(question.chain[0].key)))
	fields := []string{question.role, question.name, answer, text(question.roots), text(question.chain), key, words}
	return strings.Join(fields, "\t")
}

func ask(question question) (string, string) {
	dir := must(os.MkdirTemp("", "certificates"))
	defer os.RemoveAll(dir)
	self := issue(nil, "etcd", wish{change: func(t template) {
		t.IsCA, t.IPAddresses = true, []net.IP{net.ParseIP("127.0.0.1")}
	}})
	writePair(dir, "own", []*issued{self})
	writePair(dir, "chain", question.chain)
	writePEM(filepath.Join(dir, "roots.pem"), "CERTIFICATE", question.roots)
	ports := must(process.FreePorts(3))
	url := func(scheme string, at int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, ports[at]) }
	file := func(name string) string { return filepath.Join(dir, name) }
	args := []string{"--name=a", "--data-dir=" + file("data"), "--log-level=debug"}
	client, peer, initial := url("https", 0), url("http", 1), "a="+url("http", 1)
	pair := "own"
	switch question.role {
	case "client":
		args = append(args, "--client-cert-auth", "--trusted-ca-file="+file("roots.pem"))
	case "shown":
		pair = "chain"
	case "server":
		peer, initial = url("https", 1), "a="+url("https", 1)+",b="+url("https", 2)
		args = append(args, "--peer-cert-file="+file("own.pem"), "--peer-key-file="+file("own.key"), "--peer-trusted-ca-file="+file("roots.pem"))
	}
	args = append(args, "--cert-file="+file(pair+".pem"), "--key-file="+file(pair+".key"),
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster="+initial)
	var server net.Listener
	if question.role == "server" {
		server = must(net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", ports[2])))
		defer server.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cmd := exec.CommandContext(ctx, *etcd, args...)
	var said output
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	defer func() { cancel(); <-ended }()
	if question.role == "server" {
		return accept(server, question.chain)
	}
	return dial(client, question, ended, &said)
}

// What etcd does with a client, or whether it starts.
func dial(url string, question question, ended chan struct{}, said *output) (string, string) {
	config := &tls.Config{InsecureSkipVerify: true}
	if question.role == "client" {
		// Shown whatever authorities etcd names.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair := pairOf(question.chain)
			return &pair, nil
		}
	}
	for {
		select {
		case <-ended:
			return "refused", said.find(`"error":"((?:[^"\\]|\\.)*)"`)
		case <-time.After(50 * time.Millisecond):
		}
		// etcd serves before it has a leader; what counts is the handshake.
		http := &http.Client{Transport: &http.Transport{TLSClientConfig: config.Clone(), DisableKeepAlives: true}, Timeout: 5 * time.Second}
		answer, err := http.Get(url + "/version")
		if err == nil {
			answer.Body.Close()
			return "accepted", ""
		}
		if words := said.find(`rejected connection on client endpoint".*"error":"((?:[^"\\]|\\.)*)"`); words != "" {
			return "refused", words
		}
	}
}

// What etcd does with a server that it dials.
func accept(server net.Listener, chain []*issued) (string, string) {
	for {
		conn := must(server.Accept())
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		session := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{pairOf(chain)}})
		_, err := io.ReadFull(session, make([]byte, 1))
		conn.Close()
		if err == nil {
			return "accepted", ""
		}
		// etcd gives connections up that it no longer needs.
		if strings.Contains(err.Error(), "tls:") {
			return "refused", err.Error()
		}
	}
}

func judge(question question) (string, string) {
	var certificates []*x509.Certificate
	for _, one := range question.chain {
		parsed, err := x509.ParseCertificate(one.der)
		if err != nil {
			return "refused", err.Error()
		}
		certificates = append(certificates, parsed)
	}
	roots, others := x509.NewCertPool(), x509.NewCertPool()
	for _, one := range question.roots {
		roots.AddCert(must(x509.ParseCertificate(one.der)))
	}
	for _, one := range certificates[1:] {
		others.AddCert(one)
	}
	use := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	_, err := certificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: others, KeyUsages: use})
	if err != nil {
		return "refused", strings.Join(strings.Fields(err.Error()), " ")
	}
	return "accepted", ""
}

func pairOf(chain []*issued) tls.Certificate {
	pair := tls.Certificate{PrivateKey: chain[0].key}
	for _, one := range chain {
		pair.Certificate = append(pair.Certificate, one.der)
	}
	return pair
}

func writePair(dir, name string, chain []*issued) {
	writePEM(filepath.Join(dir, name+".pem"), "CERTIFICATE", chain)
	key := &issued{der: must(x509.MarshalPKCS8PrivateKey(chain[0].key))}
	writePEM(filepath.Join(dir, name+".key"), "PRIVATE KEY", []*issued{key})
}

func writePEM(path, label string, all []*issued) {
	var text bytes.Buffer
	for _, one := range all {
		pem.Encode(&text, &pem.Block{Type: label, Bytes: one.der})
	}
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		panic(err)
	}
}

// What a process has said.
type output struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (output *output) Write(part []byte) (int, error) {
	output.mutex.Lock()
	defer output.mutex.Unlock()
	return output.text.Write(part)
}

// The last match of a pattern's group.
func (output *output) find(pattern string) string {
	output.mutex.Lock()
	defer output.mutex.Unlock()
	all := regexp.MustCompile(pattern).FindAllStringSubmatch(output.text.String(), -1)
	if len(all) == 0 {
		return ""
	}
	words := regexp.MustCompile(`127\.0\.0\.1:\d+|/tmp/[^ "\\]*`).ReplaceAllString(all[len(all)-1][1], "…")
	return regexp.MustCompile(`current time [^ ]+`).ReplaceAllString(words, "current time …")
}
