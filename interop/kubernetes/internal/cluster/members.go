// Package cluster runs a control plane for as long as a check needs it: three members of kv-server or etcd
// and one kube-apiserver, with the flags that kubeadm gives them.
//
// All of them listen on loopback, on ports that were free. All of them end with this process.
package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"kv-server/interop/kubernetes/internal/pki"
)

const (
	memberCount = 3
	// A start on a busy machine: far above what either server takes when left alone.
	readyTimeout = 3 * time.Minute
	// Between two looks at a path that answers only once a process is ready.
	readyPoll = 50 * time.Millisecond
	// A probe that is not answered by then is made again.
	probeTimeout = 10 * time.Second
)

// Members are three servers of one cluster, with mutual TLS between them and their clients.
type Members struct {
	pki     pki.Dir
	members []*member
}

type member struct {
	process
	clientURL  string
	metricsURL string
}

// StartMembers starts three members of the program and returns when each of them serves.
func StartMembers(ctx context.Context, binary, dir string, keys pki.Dir) (*Members, error) {
	ports, err := freePorts(3 * memberCount)
	if err != nil {
		return nil, err
	}
	url := func(scheme string, port int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port) }
	var initial []string
	for i := range memberCount {
		initial = append(initial, fmt.Sprintf("m%d=%s", i+1, url("https", ports[memberCount+i])))
	}
	all := &Members{pki: keys}
	for i := range memberCount {
		name, client, peer := fmt.Sprintf("m%d", i+1), url("https", ports[i]), url("https", ports[memberCount+i])
		metrics := url("http", ports[2*memberCount+i])
		one := &member{clientURL: client, metricsURL: metrics}
		one.process = process{
			name: name, binary: binary, log: filepath.Join(dir, name+".log"),
			args: []string{
				"--name=" + name, "--data-dir=" + filepath.Join(dir, name),
				"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
				"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
				"--initial-cluster=" + strings.Join(initial, ","), "--client-cert-auth=true",
				"--cert-file=" + keys.File("etcd/server.crt"), "--key-file=" + keys.File("etcd/server.key"),
				"--trusted-ca-file=" + keys.File("etcd/ca.crt"), "--peer-client-cert-auth=true",
				"--peer-cert-file=" + keys.File("etcd/peer.crt"), "--peer-key-file=" + keys.File("etcd/peer.key"),
				"--peer-trusted-ca-file=" + keys.File("etcd/ca.crt"), "--snapshot-count=10000",
				"--listen-metrics-urls=" + metrics, "--feature-gates=InitialCorruptCheck=true",
				"--watch-progress-notify-interval=5s",
			},
		}
		all.members = append(all.members, one)
	}
	return all, all.startAll(ctx)
}

func (m *Members) startAll(ctx context.Context) error {
	errs := make([]error, len(m.members))
	var group sync.WaitGroup
	for i := range m.members {
		group.Go(func() { errs[i] = m.StartMember(ctx, i) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// StartMember starts a member, also again after it was killed, and returns when its /readyz answers 200. It
// is asked as the probes of kubeadm's pod ask: without TLS, on the port for metrics.
func (m *Members) StartMember(ctx context.Context, i int) error {
	one := m.members[i]
	if err := one.start(); err != nil {
		return err
	}
	client := &http.Client{Timeout: probeTimeout}
	defer client.CloseIdleConnections()
	return one.waitReady(ctx, client, one.metricsURL+"/readyz")
}

// KillMember ends a member as a crash does.
func (m *Members) KillMember(i int) { m.members[i].end(syscall.SIGKILL) }

// Stop ends all members.
func (m *Members) Stop() {
	for _, one := range m.members {
		one.end(syscall.SIGKILL)
	}
}

// Endpoints are the client URLs of all members.
func (m *Members) Endpoints() []string {
	var urls []string
	for _, one := range m.members {
		urls = append(urls, one.clientURL)
	}
	return urls
}

// Connect makes a client of the official package for these members.
func (m *Members) Connect(endpoints ...string) (*clientv3.Client, error) {
	config, err := m.tls()
	if err != nil {
		return nil, err
	}
	if len(endpoints) == 0 {
		endpoints = m.Endpoints()
	}
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: config, DialTimeout: time.Minute, Logger: zap.NewNop(),
	})
}

// Leader is the place of the leader among the members.
func (m *Members) Leader(ctx context.Context, client *clientv3.Client) (int, error) {
	return m.find(ctx, client, true)
}

// Follower is the place of a member that does not lead.
func (m *Members) Follower(ctx context.Context, client *clientv3.Client) (int, error) {
	return m.find(ctx, client, false)
}

func (m *Members) find(ctx context.Context, client *clientv3.Client, isLeader bool) (int, error) {
	for i, one := range m.members {
		status, err := client.Status(ctx, one.clientURL)
		if err != nil {
			return 0, err
		}
		if (status.Leader == status.Header.MemberId) == isLeader {
			return i, nil
		}
	}
	return 0, errors.New("no such member")
}

// Usage is the processor time that all members took so far, summed, and the memory of the largest.
func (m *Members) Usage() (Usage, error) {
	var all Usage
	for _, one := range m.members {
		used, err := one.usage()
		if err != nil {
			return all, err
		}
		all.CPU += used.CPU
		all.ResidentBytes = max(all.ResidentBytes, used.ResidentBytes)
		all.PeakBytes = max(all.PeakBytes, used.PeakBytes)
	}
	return all, nil
}

// DiskUsage is the disk space that the data directory of the largest member takes, in bytes.
func (m *Members) DiskUsage() (bytesMax int64, err error) {
	for _, one := range m.members {
		total := int64(0)
		for _, arg := range one.args {
			if dir, isDir := strings.CutPrefix(arg, "--data-dir="); isDir {
				if total, err = diskUsage(dir); err != nil {
					return 0, err
				}
			}
		}
		bytesMax = max(bytesMax, total)
	}
	return bytesMax, nil
}

// diskUsage adds the blocks of all files below a directory. A file may vanish meanwhile.
func diskUsage(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if stat, isStat := info.Sys().(*syscall.Stat_t); isStat {
			bytes += stat.Blocks * 512
		}
		return nil
	})
	return bytes, err
}

// LogTails returns the last lines of each member's log.
func (m *Members) LogTails() string {
	var tails []string
	for _, one := range m.members {
		tails = append(tails, one.name+":\n"+one.logTail())
	}
	return strings.Join(tails, "\n")
}

func (m *Members) tls() (*tls.Config, error) {
	return clientTLS(m.pki.File("etcd/ca.crt"), m.pki.File("apiserver-etcd-client"))
}

// waitReady returns when the URL answers 200. It fails when the process ends before that.
func (p *process) waitReady(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if response, err := client.Do(request); err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended before it was ready:\n%s", p.name, p.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready (%w):\n%s", p.name, ctx.Err(), p.logTail())
		case <-time.After(readyPoll):
		}
	}
}

func clientTLS(authority, certificate string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(certificate+".crt", certificate+".key")
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(authority)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", authority)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}
