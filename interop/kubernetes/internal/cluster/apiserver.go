package cluster

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/client-go/rest"

	"kv-server/interop/kubernetes/internal/pki"
)

const (
	// EventTTL is how long an event is kept. The apiserver's default is an hour.
	EventTTL = "20s"
	// CompactionInterval is the time between two compactions by the apiserver. Its default is five minutes.
	CompactionInterval = "30s"
	// UncachedResource is a resource that the apiserver is told not to cache: each read of it reaches the store.
	UncachedResource = "configmaps"
)

// APIServer is one kube-apiserver.
type APIServer struct {
	process
	url string
	pki pki.Dir
}

// StartAPIServer starts an apiserver that finds the members at the endpoints, with kubeadm's flags, and returns
// when its /readyz answers 200.
func StartAPIServer(
	ctx context.Context, binary, dir string, members *Members, endpoints []string,
) (*APIServer, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	encryption := filepath.Join(dir, "encryption.yaml")
	if err := writeEncryption(encryption); err != nil {
		return nil, err
	}
	keys := members.pki
	server := &APIServer{url: fmt.Sprintf("https://127.0.0.1:%d", ports[0]), pki: keys}
	server.process = process{
		name: "kube-apiserver", binary: binary, log: filepath.Join(dir, "kube-apiserver.log"),
		args: []string{
			// The address of the service "kubernetes" may not be a loopback address. Nothing connects to it.
			"--advertise-address=192.0.2.1", "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]),
			"--enable-admission-plugins=NodeRestriction", "--service-cluster-ip-range=10.96.0.0/12",
			"--service-account-key-file=" + keys.File("sa.pub"),
			"--service-account-signing-key-file=" + keys.File("sa.key"),
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--client-ca-file=" + keys.File("ca.crt"),
			"--tls-cert-file=" + keys.File("apiserver.crt"), "--tls-private-key-file=" + keys.File("apiserver.key"),
			"--kubelet-client-certificate=" + keys.File("apiserver-kubelet-client.crt"),
			"--kubelet-client-key=" + keys.File("apiserver-kubelet-client.key"),
			"--enable-bootstrap-token-auth=true", "--allow-privileged=true",
			"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
			"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--requestheader-client-ca-file=" + keys.File("front-proxy-ca.crt"),
			"--requestheader-allowed-names=front-proxy-client",
			"--proxy-client-cert-file=" + keys.File("front-proxy-client.crt"),
			"--proxy-client-key-file=" + keys.File("front-proxy-client.key"),
			"--authorization-mode=Node,RBAC",
			"--etcd-servers=" + strings.Join(endpoints, ","), "--etcd-cafile=" + keys.File("etcd/ca.crt"),
			"--etcd-certfile=" + keys.File("apiserver-etcd-client.crt"),
			"--etcd-keyfile=" + keys.File("apiserver-etcd-client.key"),
			// From here on, what kubeadm does not pass.
			"--event-ttl=" + EventTTL, "--etcd-compaction-interval=" + CompactionInterval,
			"--watch-cache-sizes=" + UncachedResource + "#0", "--encryption-provider-config=" + encryption,
			"--cert-dir=" + dir,
		},
	}
	return server, server.Start(ctx)
}

// Start runs the apiserver, also again after it was killed, and returns when it is ready.
func (s *APIServer) Start(ctx context.Context) error {
	if err := s.start(); err != nil {
		return err
	}
	client, err := s.HTTPClient()
	if err != nil {
		return err
	}
	return s.waitReady(ctx, client, s.url+"/readyz")
}

// Kill ends the apiserver as a crash does.
func (s *APIServer) Kill() { s.end(syscall.SIGKILL) }

// Stop ends the apiserver.
func (s *APIServer) Stop() { s.end(syscall.SIGTERM) }

// HasEnded tells whether the apiserver that was started last is gone.
func (s *APIServer) HasEnded() bool {
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}

// Usage is what the running apiserver took so far.
func (s *APIServer) Usage() (Usage, error) { return s.usage() }

// LogTail returns the last lines of its log.
func (s *APIServer) LogTail() string { return s.logTail() }

// Config is the configuration of a client with all rights and without a limit of its rate.
func (s *APIServer) Config() *rest.Config {
	return &rest.Config{
		Host: s.url, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: s.pki.File("ca.crt"), CertFile: s.pki.File("admin.crt"), KeyFile: s.pki.File("admin.key"),
		},
	}
}

// HTTPClient is a client with all rights for paths that are not resources.
func (s *APIServer) HTTPClient() (*http.Client, error) {
	config, err := clientTLS(s.pki.File("ca.crt"), s.pki.File("admin"))
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config}}, nil
}

// Get returns the body of a path, asked for in the given media type.
func (s *APIServer) Get(ctx context.Context, path, accept string) ([]byte, error) {
	client, err := s.HTTPClient()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, response.Status, body)
	}
	return body, err
}

// writeEncryption writes the configuration of encryption at rest: secrets are written with AES-CBC and a
// new key.
func writeEncryption(path string) error {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	return os.WriteFile(path, fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc:
      keys:
      - {name: key1, secret: %s}
  - identity: {}
`, base64.StdEncoding.EncodeToString(key)), 0o600)
}
